"""JBoss Marshalling's River protocol, behind Redisson's MarshallingCodec.

``codec`` rests on ``read`` and ``write``. ``tags`` and ``classes`` hold what the protocol knows;
``resolve`` and ``java_time`` say which Python values the JDK's own objects stand for.
"""
