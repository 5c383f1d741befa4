"""JBoss Marshalling's River protocol, behind Redisson's MarshallingCodec.

``codec`` over ``read`` and ``write``; ``tags`` and ``classes`` are what the protocol knows,
``resolve`` and ``time`` what the JDK's own objects stand for.
"""
