// BullMQ: delayed jobs, removeOnComplete. The protocol of ../README.md, which adapter.py has for Python.
// BENCH_NODE_MODULES names the folder that holds node_modules.
import { createRequire } from 'node:module';
import fs from 'node:fs';
import readline from 'node:readline';
import path from 'node:path';

const require = createRequire(path.join(process.env.BENCH_NODE_MODULES, 'x.js'));
const { Queue, Worker } = require('bullmq');

const CONCURRENCY = 50;
const IS_TUNED = process.env.BENCH_CRASH === 'tuned';
const connection = () => ({
  host: process.env.BENCH_HOST,
  port: Number(process.env.BENCH_PORT),
  maxRetriesPerRequest: null,
});

// The wall clock, finer than a millisecond: Date.now() is exact at the moment it ticks. Losing the processor right after a
// tick can only make a sample too small, so the largest of 30 is kept, and the monotonic clock counts from there.
let base = -Infinity;
function calibrate() {
  for (let k = 0; k < 30; k++) {
    const d = Date.now();
    let e;
    while ((e = Date.now()) === d);
    base = Math.max(base, e - performance.now());
  }
}
const nowMs = () => base + performance.now();

// A record is 24 bytes and one append, as in ../records.py.
const fd = process.env.BENCH_RECORDS ? fs.openSync(process.env.BENCH_RECORDS, 'a', 0o600) : -1;
const buf = Buffer.alloc(24);
function record(idx, kind, due, ms) {
  buf.writeUInt32LE(idx, 0);
  buf.writeUInt8(kind, 4);
  buf.writeDoubleLE(due, 8);
  buf.writeDoubleLE(ms / 1000, 16);
  fs.writeSync(fd, buf);
}
const sleep = ms => new Promise(r => setTimeout(r, ms));
async function task(payload) {
  const t = nowMs();
  const [i, d, w] = payload.split('|');
  const idx = Number(i), due = Number(d), work = Number(w);
  record(idx, 0, due, t);
  if (work) {
    await sleep(work);
    record(idx, 1, due, nowMs());
  }
}

const payload = (idx, due, work) => `${idx}|${due.toFixed(3)}|${work}|`.padEnd(60, 'x');

const describe = () => {
  const v = m => JSON.parse(fs.readFileSync(path.join(process.env.BENCH_NODE_MODULES, 'node_modules', m, 'package.json'))).version;
  return {
    version: `bullmq ${v('bullmq')}, ioredis ${v('ioredis')}, Node ${process.versions.node}`,
    documentation: [
      'https://docs.bullmq.io/guide/jobs/delayed',
      'https://docs.bullmq.io/guide/queues/adding-bulks',
      'https://docs.bullmq.io/guide/workers/concurrency',
      'https://docs.bullmq.io/guide/going-to-production',
    ],
    bulk: 'addBulk',
    store: null,
    layouts: {
      1: `1 Node process, Worker concurrency ${CONCURRENCY}`,
      2: `2 Node processes, Worker concurrency ${CONCURRENCY} each`,
    },
    crash: {
      default: 'lockDuration 30 s, stalledInterval 30 s, maxStalledCount 1 (defaults)',
      tuned: 'lockDuration 3 s, stalledInterval 2 s',
    },
    redelivered_s: { default: 60, tuned: 5 },
    redelivery: 'lockDuration 30 s, checked every 30 s',
    notes: '',
  };
};

function dueFor(spec, k) {
  if (spec.kind === 'now') return null;
  return Math.round((spec.t + k * (spec.step ?? 0)) * 1000) / 1000;
}
// delay counts from timestamp.
function opts(due) {
  const o = { removeOnComplete: true };
  if (due !== null) {
    o.timestamp = Date.now();
    o.delay = Math.max(0, Math.round(due * 1000) - o.timestamp);
  }
  return o;
}
// mulberry32: numbers from 0 to 1, the same for the same seed.
function randomly(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6d2b79f5) >>> 0;
    let t = a;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

async function produce() {
  calibrate();
  const qs = [0, 1, 2].map(i => new Queue(`q${i}`, { connection: connection() }));
  await Promise.all(qs.map(q => q.waitUntilReady()));
  const say = o => process.stdout.write(JSON.stringify(o) + '\n');
  say({ ready: true });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const op = JSON.parse(line);
    try {
      const t0 = nowMs() / 1000;
      if (op.op === 'enqueue') {
        const { n, start = 0, queue = 0, due: spec, work_ms: work = 0 } = op;
        if (op.mode === 'bulk') {
          const size = 500;
          for (let lo = 0; lo < n; lo += size) {
            const jobs = [];
            for (let k = lo; k < Math.min(n, lo + size); k++) {
              const due = dueFor(spec, k);
              jobs.push({ name: 'job', data: { p: payload(start + k, due ?? t0, work) }, opts: opts(due) });
            }
            await qs[queue].addBulk(jobs);
          }
        } else {
          for (let k = 0; k < n; k++) {
            const due = dueFor(spec, k);
            await qs[queue].add('job', { p: payload(start + k, due ?? t0, work) }, opts(due));
          }
        }
        say({ ok: true, n, t0, t1: nowMs() / 1000 });
      } else if (op.op === 'paced') {
        const random = randomly(op.seed);
        let lag = 0, i = 0;
        for (let k = 0; k < op.per_queue; k++) {
          for (let q = 0; q < op.queues; q++) {
            const slot = t0 + k * op.interval + (q * op.interval) / op.queues;
            let now;
            while ((now = nowMs() / 1000) < slot) await sleep(Math.max(0, (slot - now) * 1000));
            lag = Math.max(lag, now - slot);
            const due = Math.round((now + op.least_s + random() * (op.most_s - op.least_s)) * 1000) / 1000;
            await qs[q].add('job', { p: payload(i, due, 0) }, opts(due));
            i++;
          }
        }
        say({ ok: true, n: i, t0, t1: nowMs() / 1000, lag });
      } else throw new Error(`unknown op ${op.op}`);
    } catch (e) {
      console.error(e);
      say({ ok: false, error: String(e) });
    }
  }
  process.exit(0);
}

async function work(n) {
  calibrate();
  const o = () => {
    const w = { connection: connection(), concurrency: CONCURRENCY };
    if (IS_TUNED) Object.assign(w, { lockDuration: 3000, stalledInterval: 2000 });
    return w;
  };
  const ws = Array.from({ length: n }, (_, i) => new Worker(`q${i}`, job => task(job.data.p), o()));
  ws.forEach(w => w.on('error', e => console.error(e)));
  process.on('SIGTERM', async () => { await Promise.all(ws.map(w => w.close(true))); process.exit(0); });
}

const [cmd, a, b] = process.argv.slice(2);
if (cmd === 'describe') console.log(JSON.stringify(describe()));
else if (cmd === 'workers') {
  const argv = [process.execPath, process.argv[1], 'work', b];
  console.log(JSON.stringify(Array.from({ length: Number(a) }, () => ({ argv }))));
} else if (cmd === 'produce') await produce();
else if (cmd === 'work') await work(Number(a));
else { console.error(`unknown command ${cmd}`); process.exit(2); }
