import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Proxy;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.Codec;
import org.redisson.client.handler.State;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/**
 * A Java service with a real Redisson, told what to do line by line.
 *
 * Arguments: the server's address; the codec of Config, or "default"; a prefix for every name, or nothing. A request on stdin is one JSON object with
 * "id", "op" and the operation's arguments; each runs in a thread of its own, so one may wait while others go on. The
 * reply on stdout has the same "id", and "result" or "error". The end of stdin is the end of the process.
 *
 * A value is written as [type, content], so that 5 as Integer and 5 as Long differ: see build() and describe().
 */
public final class Peer {

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final State STATE = state();

    private final RedissonClient redisson;
    private final PrintStream out;
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final Map<String, RDelayedQueue<Object>> delayed = new ConcurrentHashMap<>();
    private final Map<String, Consumer> consumers = new ConcurrentHashMap<>();
    private final Map<String, Codec> codecs = new ConcurrentHashMap<>();

    private Peer(String address, String codec, String prefix) throws Exception {
        // What Redisson's libraries print is not for the other end of stdout.
        out = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err);
        Config config = new Config();
        // One connection for all subscriptions: a hundred queues at once, by five on each, and on a busy machine 3.40 waits
        // for its own lock until it gives up.
        SingleServerConfig server = config.useSingleServer().setAddress(address)
            .setConnectionMinimumIdleSize(2).setConnectionPoolSize(24).setSubscriptionsPerConnection(1_000);
        if (!codec.equals("default")) config.setCodec(codec(codec));
        if (!prefix.isEmpty()) setNameMapper(server, prefix);
        redisson = Redisson.create(config);
    }

    /** Put a prefix before every name. The interface moved between versions, and the oldest have none. */
    private static void setNameMapper(SingleServerConfig server, String prefix) throws Exception {
        for (Method method : server.getClass().getMethods()) {
            if (!method.getName().equals("setNameMapper")) continue;
            Class<?> type = method.getParameterTypes()[0];
            method.invoke(server, Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
                (proxy, called, arguments) -> called.getName().equals("map")
                    ? prefix + arguments[0] : ((String) arguments[0]).substring(prefix.length())));
            return;
        }
        throw new IllegalArgumentException("this version has no NameMapper");
    }

    public static void main(String[] arguments) throws Exception {
        Peer peer = new Peer(arguments[0], arguments[1], arguments[2]);
        peer.reply(0, "result", "ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> request = JSON.readValue(line, new TypeReference<Map<String, Object>>() { });
            peer.threads.execute(() -> peer.serve(request));
        }
        // Whoever started us is gone, or done with us: nobody waits for a shutdown.
        Runtime.getRuntime().halt(0);
    }

    private void serve(Map<String, Object> request) {
        int id = (Integer) request.get("id");
        try {
            reply(id, "result", perform((String) request.get("op"), new Arguments(request)));
        } catch (Throwable error) {
            Throwable root = error;
            while (root.getCause() != null) root = root.getCause();
            reply(id, "error", root.getClass().getName() + ": " + root.getMessage());
        }
    }

    private void reply(int id, String kind, Object content) {
        try {
            Map<String, Object> reply = new LinkedHashMap<>();
            reply.put("id", id);
            reply.put(kind, content);
            String line = JSON.writeValueAsString(reply);
            synchronized (out) {
                out.println(line);
                out.flush();
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    // Operations

    private Object perform(String op, Arguments a) throws Throwable {
        switch (op) {
            case "default_codec": return redisson.getConfig().getCodec().getClass().getSimpleName();
            // What the codec makes of a value, and what it reads from a payload.
            case "encode": return encode(codec(a.text("codec")), build(a.get("value")));
            case "decode": return decode(codec(a.text("codec")), a.text("payload"));

            // From now on this process transfers the queue, until "destroy".
            case "hold": return hold(a) != null;
            case "destroy": delayed.remove(a.text("queue")).destroy(); return null;
            case "offer": return offer(a);
            case "offer_many": return offerMany(a);
            case "size": return hold(a).size();
            case "contains": return hold(a).contains(build(a.get("value")));
            case "contains_all": return hold(a).containsAll(buildAll(a.get("values")));
            case "remove": return hold(a).remove(build(a.get("value")));
            case "remove_all": return hold(a).removeAll(buildAll(a.get("values")));
            case "retain_all": return hold(a).retainAll(buildAll(a.get("values")));
            case "read_all": return describeAll(hold(a).readAll());
            case "iterate": {
                List<Object> all = new ArrayList<>();
                for (Object value : hold(a)) all.add(value);
                return describeAll(all);
            }
            case "peek": return describe(hold(a).peek());
            case "poll_waiting": return describe(hold(a).poll());
            case "poll_waiting_many": return describeAll(hold(a).poll(a.number("limit")));
            case "poll_last_and_offer_first_to":
                return describe(hold(a).pollLastAndOfferFirstTo(a.text("to")));
            case "clear": hold(a).clear(); return null;

            // The destination queue.
            case "take": return take(a);
            case "put": destination(a).offer(build(a.get("value"))); return null;
            case "poll_and_offer": return describe(pollAndOffer(a));
            case "poll": return describe(destination(a).poll(a.number("timeout_ms"), TimeUnit.MILLISECONDS));
            case "length": return destination(a).size();
            case "consume": consumers.put(a.text("queue"), new Consumer(a)); return null;
            case "consumed": return consumers.get(a.text("queue")).told();
            case "stop_consuming": return consumers.remove(a.text("queue")).stop();

            case "shutdown": redisson.shutdown(); return null;
            default: throw new IllegalArgumentException("no such operation: " + op);
        }
    }

    private RBlockingQueue<Object> destination(Arguments a) throws Exception {
        return a.has("codec")
            ? redisson.getBlockingQueue(a.text("queue"), codec(a.text("codec")))
            : redisson.getBlockingQueue(a.text("queue"));
    }

    private RDelayedQueue<Object> hold(Arguments a) throws Exception {
        RDelayedQueue<Object> held = delayed.get(a.text("queue"));
        if (held == null) {
            held = redisson.getDelayedQueue(destination(a));
            delayed.put(a.text("queue"), held);
        }
        return held;
    }

    private Object offer(Arguments a) throws Exception {
        RDelayedQueue<Object> queue = hold(a);
        for (Object item : (List<?>) a.get("items")) {
            List<?> pair = (List<?>) item;
            queue.offer(build(pair.get(0)), ((Number) pair.get(1)).longValue(), TimeUnit.MILLISECONDS);
        }
        return null;
    }

    /** Take an element and put it in again, as the object that the codec made of it; "into" is another codec to write. */
    private Object pollAndOffer(Arguments a) throws Exception {
        Object value;
        switch (a.text("from")) {
            case "delayed": value = hold(a).poll(); break;
            case "poll": value = destination(a).poll(a.number("timeout_ms"), TimeUnit.MILLISECONDS); break;
            case "take": value = destination(a).take(); break;
            default: throw new IllegalArgumentException(a.text("from"));
        }
        if (value == null) return null;
        if (a.text("to").equals("delayed")) hold(a).offer(value, a.number("delay_ms"), TimeUnit.MILLISECONDS);
        else if (a.has("into")) redisson.getBlockingQueue(a.text("queue"), codec(a.text("into"))).offer(value);
        else destination(a).offer(value);
        return value;
    }

    /** Offer many at once, from some threads: number and, after a colon, the ms at which each is due. */
    private Object offerMany(Arguments a) throws Exception {
        RDelayedQueue<Object> queue = hold(a);
        int first = a.number("first");
        int count = a.number("count");
        int threadCount = a.number("threads");
        String kind = a.text("kind");
        List<Future<?>> offering = new ArrayList<>();
        for (int i = 0; i < threadCount; i++) {
            int offset = i;
            offering.add(threads.submit(() -> {
                for (int n = offset; n < count; n += threadCount) {
                    long now = System.currentTimeMillis();
                    long delay = a.has("at_ms")
                        ? Math.max(0, a.longNumber("at_ms") - now)
                        : ThreadLocalRandom.current().nextLong(a.number("least_ms"), a.number("most_ms") + 1L);
                    queue.offer(numbered(kind, first + n, now + delay), delay, TimeUnit.MILLISECONDS);
                }
            }));
        }
        for (Future<?> each : offering) each.get();
        return null;
    }

    private static Object numbered(String kind, int number, long due) {
        switch (kind) {
            case "String": return number + ":" + due;
            case "Integer": return number;
            case "Long": return (long) number;
            case "Double": return (double) number;
            case "byte[]": return (number + ":" + due).getBytes(StandardCharsets.UTF_8);
            default: throw new IllegalArgumentException(kind);
        }
    }

    private Object take(Arguments a) throws Exception {
        RBlockingQueue<Object> queue = destination(a);
        long deadline = System.currentTimeMillis() + a.number("timeout_ms");
        List<Object> taken = new ArrayList<>();
        while (taken.size() < a.number("count") && System.currentTimeMillis() < deadline) {
            Object value = queue.poll(1, TimeUnit.SECONDS);
            if (value != null) taken.add(describe(value));
        }
        return taken;
    }

    private static String encode(Codec codec, Object value) throws Exception {
        ByteBuf bytes = codec.getValueEncoder().encode(value);
        try {
            return ByteBufUtil.hexDump(bytes);
        } finally {
            bytes.release();
        }
    }

    private static Object decode(Codec codec, String payload) throws Exception {
        ByteBuf bytes = Unpooled.wrappedBuffer(ByteBufUtil.decodeHexDump(payload));
        try {
            return describe(codec.getValueDecoder().decode(bytes, STATE));
        } finally {
            bytes.release();
        }
    }

    /** Threads that take until they are told to stop, and remember what came when, in epoch us. */
    /**
     * Threads that take until they are told to stop. Those in take() are never interrupted: Redisson then replaces the
     * connection that waits, and whatever was sent on it meanwhile gets no answer.
     */
    private final class Consumer {

        private final Queue<Object> seen = new ConcurrentLinkedQueue<>();
        private final List<Future<?>> running = new ArrayList<>();
        private final RBlockingQueue<Object> queue;
        /** Ends one thread's take(), in a type that the codec knows; null for those who poll. */
        private final Object last;
        private volatile boolean isStopped;

        Consumer(Arguments a) throws Exception {
            queue = destination(a);
            last = a.has("take") ? lastFor(a.text("codec")) : null;
            long timeoutMs = last != null ? 0 : a.number("timeout_ms");
            for (int i = 0; i < a.number("threads"); i++) {
                running.add(threads.submit(() -> {
                    while (!isStopped) {
                        try {
                            Object value = last != null ? queue.take() : queue.poll(timeoutMs, TimeUnit.MILLISECONDS);
                            Instant now = Instant.now();
                            if (value == null) continue;
                            if (isStopped && text(value).equals(text(last))) return;
                            long us = now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
                            seen.add(Arrays.asList(text(value), us));
                        } catch (InterruptedException ended) {
                            return;
                        } catch (RuntimeException away) {
                            // The server may be away for a moment: the next call waits for it.
                            seen.add(Arrays.asList("error: " + away, 0L));
                            Thread.yield();
                        }
                    }
                }));
            }
        }

        Object told() {
            return new ArrayList<>(seen);
        }

        Object stop() throws Exception {
            isStopped = true;
            if (last != null) for (Future<?> each : running) queue.offer(last);
            for (Future<?> each : running) each.get(10, TimeUnit.SECONDS);
            return told();
        }
    }

    private static Object lastFor(String codec) {
        switch (codec) {
            case "LongCodec": return -1L;
            case "IntegerCodec": return -1;
            case "DoubleCodec": return -1.0;
            case "ByteArrayCodec": return "the last".getBytes(StandardCharsets.UTF_8);
            default: return "the last";
        }
    }

    private static String text(Object value) {
        return value instanceof byte[] ? new String((byte[]) value, StandardCharsets.UTF_8) : String.valueOf(value);
    }

    // Codecs

    private Codec codec(String name) throws Exception {
        Codec known = codecs.get(name);
        if (known == null) {
            known = name.equals("default") ? redisson.getConfig().getCodec() : makeCodec(name);
            codecs.put(name, known);
        }
        return known;
    }

    /**
     * A codec by its simple name. What stands in parentheses is for its constructor: a class, or the codecs that it
     * wraps, which are none of those that wrap: "LZ4Codec(Kryo5Codec)", "CompositeCodec(StringCodec,Kryo5Codec)".
     */
    private static Codec makeCodec(String name) throws Exception {
        int open = name.indexOf('(');
        Class<?> codec = codecClass(open < 0 ? name : name.substring(0, open));
        if (open < 0) return (Codec) codec.getConstructor().newInstance();
        String[] within = name.substring(open + 1, name.length() - 1).split(",");
        if (within[0].contains(".")) {
            return (Codec) codec.getConstructor(Class.class).newInstance(Class.forName(within[0]));
        }
        Class<?>[] types = new Class<?>[within.length];
        Object[] wrapped = new Object[within.length];
        for (int i = 0; i < within.length; i++) {
            types[i] = Codec.class;
            wrapped[i] = makeCodec(within[i]);
        }
        return (Codec) codec.getConstructor(types).newInstance(wrapped);
    }

    private static Class<?> codecClass(String simple) throws ClassNotFoundException {
        for (String where : new String[] {"org.redisson.codec.", "org.redisson.client.codec.", "demo."}) {
            try {
                return Class.forName(where + simple);
            } catch (ClassNotFoundException absent) {
                // In the next one, or in none.
            }
        }
        throw new ClassNotFoundException(simple);
    }

    private static State state() {
        try {
            return State.class.getConstructor().newInstance();
        } catch (ReflectiveOperationException older) {
            try {
                return State.class.getConstructor(boolean.class).newInstance(false);
            } catch (ReflectiveOperationException neither) {
                throw new IllegalStateException(neither);
            }
        }
    }

    // Values

    private static List<Object> buildAll(Object described) throws Exception {
        List<Object> values = new ArrayList<>();
        for (Object each : (List<?>) described) values.add(build(each));
        return values;
    }

    @SuppressWarnings("unchecked")
    private static Object build(Object described) throws Exception {
        List<?> pair = (List<?>) described;
        String type = (String) pair.get(0);
        Object content = pair.size() > 1 ? pair.get(1) : null;
        switch (type) {
            case "null": return null;
            // As if they stood in a program, where equal ones are one object: MarshallingCodec can tell.
            case "String": return ((String) content).intern();
            case "Boolean": return content;
            case "Integer": return Integer.valueOf((String) content);
            case "Long": return Long.valueOf((String) content);
            case "Short": return Short.valueOf((String) content);
            case "Byte": return Byte.valueOf((String) content);
            case "Double": return Double.valueOf((String) content);
            case "Float": return Float.valueOf((String) content);
            case "Character": return ((String) content).charAt(0);
            case "BigInteger": return new BigInteger((String) content);
            case "BigDecimal": return new BigDecimal((String) content);
            case "UUID": return UUID.fromString((String) content);
            case "Date": return new Date(Long.parseLong((String) content));
            case "Instant": {
                String[] parts = ((String) content).split(":");
                return Instant.ofEpochSecond(Long.parseLong(parts[0]), Long.parseLong(parts[1]));
            }
            case "byte[]": return ByteBufUtil.decodeHexDump((String) content);
            default:
        }
        Class<?> of = Class.forName(type);
        if (of.isEnum()) return Enum.valueOf(of.asSubclass(Enum.class), (String) content);
        if (of.isArray()) {
            List<Object> items = buildAll(content);
            Object array = Array.newInstance(of.getComponentType(), items.size());
            for (int i = 0; i < items.size(); i++) Array.set(array, i, items.get(i));
            return array;
        }
        Object made = of.getConstructor().newInstance();
        if (made instanceof Collection) {
            ((Collection<Object>) made).addAll(buildAll(content));
        } else if (made instanceof Map) {
            for (Object entry : (List<?>) content) {
                List<Object> both = buildAll(entry);
                ((Map<Object, Object>) made).put(both.get(0), both.get(1));
            }
        } else {
            for (Map.Entry<String, Object> field : ((Map<String, Object>) content).entrySet()) {
                of.getField(field.getKey()).set(made, build(field.getValue()));
            }
        }
        return made;
    }

    private static List<Object> describeAll(Collection<?> values) throws Exception {
        List<Object> described = new ArrayList<>();
        for (Object value : values) described.add(describe(value));
        return described;
    }

    private static Object describe(Object value) throws Exception {
        if (value == null) return Arrays.asList("null");
        Class<?> type = value.getClass();
        if (value instanceof String || value instanceof Boolean) return Arrays.asList(type.getSimpleName(), value);
        if (value instanceof Number && type.getName().startsWith("java.") || value instanceof Character
                || value instanceof UUID) {
            return Arrays.asList(type.getSimpleName(), value.toString());
        }
        if (value instanceof Instant) {
            return Arrays.asList("Instant", ((Instant) value).getEpochSecond() + ":" + ((Instant) value).getNano());
        }
        if (value instanceof Date) return Arrays.asList("Date", Long.toString(((Date) value).getTime()));
        if (value instanceof byte[]) return Arrays.asList("byte[]", ByteBufUtil.hexDump((byte[]) value));
        if (value instanceof Enum) {
            return Arrays.asList(((Enum<?>) value).getDeclaringClass().getName(), ((Enum<?>) value).name());
        }
        if (type.isArray()) {
            List<Object> items = new ArrayList<>();
            for (int i = 0; i < Array.getLength(value); i++) items.add(describe(Array.get(value, i)));
            return Arrays.asList(type.getName(), items);
        }
        if (value instanceof Collection) {
            List<Object> items = describeAll((Collection<?>) value);
            return Arrays.asList(type.getName(), items);
        }
        if (value instanceof Map) {
            List<Object> entries = new ArrayList<>();
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                entries.add(Arrays.asList(describe(entry.getKey()), describe(entry.getValue())));
            }
            return Arrays.asList(type.getName(), entries);
        }
        if (type.getName().startsWith("demo.")) {
            Map<String, Object> fields = new TreeMap<>();
            for (Field field : type.getFields()) {
                if (!Modifier.isStatic(field.getModifiers())) fields.put(field.getName(), describe(field.get(value)));
            }
            return Arrays.asList(type.getName(), fields);
        }
        return Arrays.asList("other", type.getName(), value.toString());
    }

    /** What came with a request. */
    private static final class Arguments {

        private final Map<String, Object> given;

        Arguments(Map<String, Object> given) {
            this.given = given;
        }

        boolean has(String name) {
            return given.get(name) != null;
        }

        Object get(String name) {
            if (!given.containsKey(name)) throw new IllegalArgumentException("missing: " + name);
            return given.get(name);
        }

        /** A text, or the parts of one that is longer than a Jackson of 2.15.0 lets through, 5 MB. */
        String text(String name) {
            Object found = get(name);
            if (!(found instanceof List)) return (String) found;
            StringBuilder text = new StringBuilder();
            for (Object part : (List<?>) found) text.append((String) part);
            return text.toString();
        }

        int number(String name) {
            return ((Number) get(name)).intValue();
        }

        long longNumber(String name) {
            return ((Number) get(name)).longValue();
        }
    }
}
