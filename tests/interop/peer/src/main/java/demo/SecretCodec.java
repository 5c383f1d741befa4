package demo;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.io.IOException;
import java.security.GeneralSecurityException;
import javax.crypto.Cipher;
import javax.crypto.spec.IvParameterSpec;
import javax.crypto.spec.SecretKeySpec;
import org.redisson.client.codec.BaseCodec;
import org.redisson.client.codec.Codec;
import org.redisson.client.protocol.Decoder;
import org.redisson.client.protocol.Encoder;

/** A codec as a Java service may have one of its own: it encrypts what another writes. The key is no secret. */
public class SecretCodec extends BaseCodec {

    private final Codec inner;

    public SecretCodec(Codec inner) {
        this.inner = inner;
    }

    @Override
    public Encoder getValueEncoder() {
        return value -> crypt(Cipher.ENCRYPT_MODE, inner.getValueEncoder().encode(value));
    }

    @Override
    public Decoder<Object> getValueDecoder() {
        return (bytes, state) -> inner.getValueDecoder().decode(crypt(Cipher.DECRYPT_MODE, bytes), state);
    }

    private static ByteBuf crypt(int mode, ByteBuf bytes) throws IOException {
        try {
            Cipher cipher = Cipher.getInstance("AES/CTR/NoPadding");
            byte[] key = "django-delayq 16".getBytes();
            cipher.init(mode, new SecretKeySpec(key, "AES"), new IvParameterSpec(key));
            return Unpooled.wrappedBuffer(cipher.doFinal(ByteBufUtil.getBytes(bytes)));
        } catch (GeneralSecurityException error) {
            throw new IOException(error);
        }
    }
}
