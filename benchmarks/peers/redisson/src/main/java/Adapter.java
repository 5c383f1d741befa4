import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

import org.json.JSONArray;
import org.json.JSONObject;

import org.redisson.Redisson;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RDelayedQueue;
import org.redisson.api.RFuture;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Redisson's RDelayedQueue behind the protocol of ../../../../README.md.
 *
 * <p>describe | workers LAYOUT QUEUES | produce | work QUEUES THREADS
 */
public final class Adapter {
    private static final int THREADS = 4;
    private static final int IN_FLIGHT = 50;
    private static final String VERSION = System.getProperty("bench.redisson", "?");
    /** Delayed queues that stay open: without them nothing moves the due jobs. */
    private static final List<Object> HELD = new ArrayList<>();
    private static final PrintStream OUT = new PrintStream(System.out, true);

    /** A record is 24 bytes, little-endian, and one append, as in ../../../../records.py. */
    private static FileChannel rec;
    private static final ThreadLocal<ByteBuffer> BUF =
            ThreadLocal.withInitial(() -> ByteBuffer.allocateDirect(24).order(ByteOrder.LITTLE_ENDIAN));

    private static double now() {
        Instant t = Instant.now();
        return t.getEpochSecond() + t.getNano() / 1e9;
    }

    private static void record(long idx, int kind, double due, double at) throws Exception {
        ByteBuffer b = BUF.get();
        b.clear();
        b.putInt((int) idx).put((byte) kind).put((byte) 0).put((byte) 0).put((byte) 0);
        b.putDouble(due).putDouble(at);
        b.flip();
        rec.write(b);
    }

    private static void task(String payload) throws Exception {
        double t = now();
        int a = payload.indexOf('|'), b = payload.indexOf('|', a + 1), c = payload.indexOf('|', b + 1);
        long idx = Long.parseLong(payload.substring(0, a));
        double due = Double.parseDouble(payload.substring(a + 1, b));
        long work = Long.parseLong(payload.substring(b + 1, c));
        record(idx, 0, due, t);
        if (work > 0) {
            Thread.sleep(work);
            record(idx, 1, due, now());
        }
    }

    private static String payload(long idx, double due, long work) {
        StringBuilder s = new StringBuilder(60);
        s.append(idx).append('|');
        long ms = Math.round(due * 1000);
        s.append(ms / 1000).append('.');
        long frac = ms % 1000;
        if (frac < 100) s.append('0');
        if (frac < 10) s.append('0');
        s.append(frac).append('|').append(work).append('|');
        while (s.length() < 60) s.append('x');
        return s.toString();
    }

    private static RedissonClient connect() {
        Config c = new Config();
        String host = System.getenv("BENCH_HOST"), port = System.getenv("BENCH_PORT");
        c.useSingleServer().setAddress("redis://" + host + ":" + port);
        c.setCodec(StringCodec.INSTANCE);
        return Redisson.create(c);
    }

    private static RBlockingQueue<String> dest(RedissonClient r, int i) {
        return r.getBlockingQueue("q" + i, StringCodec.INSTANCE);
    }

    /** Due time of job k in ms, or -1 for "now". */
    private static long dueFor(JSONObject spec, int k) {
        String kind = spec.getString("kind");
        if (kind.equals("now")) return -1;
        double t = spec.getDouble("t");
        return Math.round((t + k * spec.optDouble("step", 0)) * 1000);
    }

    private static long delay(long dueMs) {
        // offer() reads the clock itself, a moment later: never earlier than asked.
        return Math.max(0, dueMs - System.currentTimeMillis());
    }

    private static void produce() throws Exception {
        RedissonClient r = connect();
        List<RBlockingQueue<String>> qs = new ArrayList<>();
        List<RDelayedQueue<String>> ds = new ArrayList<>();
        for (int i = 0; i < 3; i++) qs.add(dest(r, i));
        boolean delayed = false;
        warm(r);
        say(Map.of("ready", true));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            JSONObject op = new JSONObject(line);
            try {
                String what = op.getString("op");
                boolean now = what.equals("enqueue") && op.getJSONObject("due").getString("kind").equals("now");
                if (!delayed && !now) {
                    // It also starts this client's own transfer of due jobs, as in every application that offers.
                    for (RBlockingQueue<String> q : qs) ds.add(r.getDelayedQueue(q));
                    delayed = true;
                }
                if (what.equals("enqueue")) enqueue(op, qs, ds);
                else if (what.equals("paced")) paced(op, ds);
                else throw new IllegalArgumentException("unknown op " + what);
            } catch (Exception e) {
                e.printStackTrace();
                say(Map.of("ok", false, "error", e.toString()));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    /** Run offer() until it is compiled, as it is in a service that has run for a while. */
    private static void warm(RedissonClient r) {
        RBlockingQueue<String> q = r.getBlockingQueue("warm", StringCodec.INSTANCE);
        RDelayedQueue<String> d = r.getDelayedQueue(q);
        for (int i = 0; i < 5000; i++) d.offer(payload(i, 0, 0), 1, TimeUnit.DAYS);
        d.clear();
        q.clear();
        d.destroy();
    }

    private static void enqueue(JSONObject op, List<RBlockingQueue<String>> qs, List<RDelayedQueue<String>> ds)
            throws Exception {
        int n = op.getInt("n");
        long start = op.optLong("start", 0), work = op.optLong("work_ms", 0);
        int q = op.optInt("queue", 0);
        boolean bulk = op.optString("mode", "single").equals("bulk");
        JSONObject spec = op.getJSONObject("due");
        double t0 = now();
        List<RFuture<?>> open = new ArrayList<>(IN_FLIGHT);
        for (int k = 0; k < n; k++) {
            long due = dueFor(spec, k);
            String p = payload(start + k, due < 0 ? t0 : due / 1000.0, work);
            if (!bulk) {
                if (due < 0) qs.get(q).add(p);
                else ds.get(q).offer(p, delay(due), TimeUnit.MILLISECONDS);
                continue;
            }
            open.add(due < 0 ? qs.get(q).addAsync(p) : ds.get(q).offerAsync(p, delay(due), TimeUnit.MILLISECONDS));
            if (open.size() == IN_FLIGHT || k == n - 1) {
                for (RFuture<?> f : open) f.toCompletableFuture().get();
                open.clear();
            }
        }
        say(Map.of("ok", true, "n", n, "t0", t0, "t1", now()));
    }

    private static void paced(JSONObject op, List<RDelayedQueue<String>> ds) throws Exception {
        Random random = new Random(op.getLong("seed"));
        int nq = op.getInt("queues"), per = op.getInt("per_queue");
        double step = op.getDouble("interval"), least = op.getDouble("least_s"), most = op.getDouble("most_s");
        double t0 = now(), lag = 0;
        int i = 0;
        for (int k = 0; k < per; k++) {
            for (int q = 0; q < nq; q++) {
                double slot = t0 + k * step + q * step / nq, t;
                while ((t = now()) < slot) LockSupport.parkNanos((long) ((slot - t) * 1e9));
                lag = Math.max(lag, t - slot);
                long due = Math.round((t + least + random.nextDouble() * (most - least)) * 1000);
                ds.get(q).offer(payload(i, due / 1000.0, 0), delay(due), TimeUnit.MILLISECONDS);
                i++;
            }
        }
        say(Map.of("ok", true, "n", i, "t0", t0, "t1", now(), "lag", lag));
    }

    private static void say(Map<String, ?> m) throws Exception {
        OUT.println(new JSONObject(m));
    }

    private static void work(int queues, int threads) throws Exception {
        rec = FileChannel.open(Path.of(System.getenv("BENCH_RECORDS")), StandardOpenOption.WRITE,
                StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        RedissonClient r = connect();
        for (int i = 0; i < queues; i++) {
            RBlockingQueue<String> q = dest(r, i);
            HELD.add(r.getDelayedQueue(q));
            for (int t = 0; t < threads; t++) {
                Thread th = new Thread(() -> {
                    while (true) {
                        try {
                            task(q.take());
                        } catch (Exception e) {
                            e.printStackTrace();
                        }
                    }
                }, "take-" + i + "-" + t);
                th.start();
            }
        }
        Thread.currentThread().join();
    }

    private static void describe() throws Exception {
        System.out.println(new JSONObject(Map.of(
                "version", "redisson " + VERSION + ", Java " + System.getProperty("java.version"),
                "documentation", List.of(
                        "https://redisson.pro/docs/data-and-services/queues/#delayed-queue",
                        "https://redisson.pro/docs/configuration/"),
                "store", JSONObject.NULL,
                "redelivered_s", Map.of("default", JSONObject.NULL),
                "bulk", "offerAsync, " + IN_FLIGHT + " in flight (no bulk call)",
                "layouts", Map.of(
                        "1", "1 JVM, RDelayedQueue open, " + THREADS + " threads a queue in RBlockingQueue.take()",
                        "2", "2 JVMs, the same"),
                "crash", Map.of("default", "RBlockingQueue.take pops before the job runs"),
                "redelivery", "none: a job is popped before it runs (at most once)",
                "notes", "the producer's client moves due jobs too, as any client holding the delayed queue does")));
    }

    private static void workers(String layout, String queues) throws Exception {
        List<Object> out = new ArrayList<>();
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        for (int i = 0; i < Integer.parseInt(layout); i++) {
            out.add(Map.of("argv", List.of(java, "-cp", System.getProperty("java.class.path"), "Adapter",
                    "work", queues, String.valueOf(THREADS))));
        }
        System.out.println(new JSONArray(out));
    }

    public static void main(String[] a) throws Exception {
        Locale.setDefault(Locale.ROOT);
        switch (a[0]) {
            case "describe" -> describe();
            case "workers" -> workers(a[1], a[2]);
            case "produce" -> produce();
            case "work" -> work(Integer.parseInt(a[1]), Integer.parseInt(a[2]));
            default -> throw new IllegalArgumentException("unknown command " + a[0]);
        }
    }
}
