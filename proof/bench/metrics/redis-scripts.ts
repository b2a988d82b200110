// How long single scripts hold a Redis server that has a million jobs: every verb that touches many jobs at once, each as a user brings it about; of each
// script the median and the longest run by the server's own clock, next to plain commands of the same run, which show how long the machine itself takes away.
import { setTimeout as pause } from "node:timers/promises";
import { open } from "../../../src/index.ts";
import type { AuditAction, AuditEntry } from "../../../src/job/audit.ts";
import { followOf, jobKind, jobOf, type Part, STEPS } from "../../../src/job/collections.ts";
import type { JobKey } from "../../../src/job/limits.ts";
import { wait } from "../../../src/job/transitions.ts";
import { systemClock, systemRandom } from "../../../src/platform/clock.ts";
import { decideLoss } from "../../../src/recovery/losses.ts";
import { decideCrash, recoverBatch } from "../../../src/recovery/recover.ts";
import { redisAddress } from "../../../src/stores/redis/address.ts";
import { Connection, SCHEMA_VERSION, tagOf } from "../../../src/stores/redis/connection.ts";
import { integrity, repair } from "../../../src/stores/redis/integrity.ts";
import { MAX_DUE } from "../../../src/schedules/firing.ts";
import { SCRIPT_NAMES, scriptsOf, SERVER_CLOCK } from "../../../src/stores/redis/scripts.ts";
import { redisStore } from "../../../src/stores/redis/store.ts";
import type { Resendable } from "../../../src/stores/redis/journal.ts";
import type { AttemptWrite, CondemnRequest, Store } from "../../../src/stores/port.ts";
import { draft, kind, names, roomFor, SETTLE, workerRecord } from "../../../src/testing/conformance/fixture.ts";
import { scheduleRow } from "../../../src/testing/conformance/schedules.ts";
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";
import { noop } from "../programs/noop.ts";
import { TestedRedis } from "../stores/redis.ts";

/** What the issue allows one script, in microseconds. */
const SLOW_US = 10_000;
/** Redis also logs the commands that a script calls, and all of them would fill the log and take their time: none of these takes so long. */
const LOGGED_US = 100;
/** A plain command that always does the same work of about a millisecond, sent all the time: what it takes longer at times, the machine takes from every script. */
const NOISE = "bench-noise";
const PLAIN = ["SORT_RO", NOISE, "LIMIT", "0", "1"] as const;
const SORTED = 3_000;

interface Stage {
  readonly url: string;
  readonly store: Store;
  readonly connection: Connection;
  readonly ends: readonly Resendable[];
  /** How many of something, in a full and in a quick run. */
  readonly pick: (full: number, quick: number) => number;
}

/** Each leaves no running job behind. */
const SCENES: Readonly<Record<string, (stage: Stage) => Promise<void>>> = {
  "claim and settle a thousand at once": claimAndSettle,
  "1,000 kinds": manyKinds,
  "jobs that become due, and that expire": dueAndExpired,
  "jobs that fail, are cancelled and retried by hand": byHand,
  "a worker that holds 5,000 jobs: heartbeats, death, recovery, report": recoverMany,
  "a job that is alone when its workers die": culprit,
  "20,000 jobs with keys": keyed,
  "a batch of 20,000 blocks: append, abort, end": batch,
  "10,000 schedules": schedules,
  "collections of 5,000 parts: put, end, purge": collections,
  "signals, and jobs that wait for others": signals,
  "the audit of many changes": audit,
  "lists, positions, results, and children": readsAndWrites,
  "a worker of 5,000 jobs loses contact, and comes after a restart": losses,
  "retention of a million": purge,
  "check and repair": checkAndRepair,
  "a store of layout 2": fromLayout2,
};

export const slowScripts: Metric = {
  names: ["slowScripts"],
  async run(bench) {
    const million = bench.pick(1_000_000, 50_000);
    if (!(bench.store instanceof TestedRedis)) throw new Error("a metric of Redis needs Redis");
    const server = bench.store;
    const url = await server.place();
    bench.progress(`slowScripts: filling ${million} jobs`);
    await server.fill(bench, url, { kind: "noop", priority: 0, finished: true }, million / 2);
    await server.fill(bench, url, { kind: "noop", priority: 0 }, million / 2);
    await server.command("CONFIG", "SET", "slowlog-log-slower-than", String(LOGGED_US));
    await server.command("CONFIG", "SET", "slowlog-max-len", "200000");
    const runs = new Map<string, number[]>();
    const notRun = new Set<string>(SCRIPT_NAMES);
    /** A repair, and a new layout, begin a run: its scripts have other texts. */
    const known = new Map<string, string>();
    const meta = `${tagOf(redisAddress(url).name)}meta`;
    const numbers = Array.from({ length: SORTED }, (_, at) => String((at * 7_919) % SORTED));
    await server.command("RPUSH", NOISE, ...numbers);
    const connection = new Connection({ address: redisAddress(url), random: systemRandom, clock: systemClock });
    const calls = new Map<string, number>();
    const evaluate = connection.eval.bind(connection);
    /** What would be sent again after a loss. */
    const ends: Resendable[] = [];
    connection.eval = (name, ...rest) => {
      const again = rest[1] ?? [];
      ends.push(...again.filter(({ script }) => script === "settleAgain").slice(0, Math.max(0, 5 - ends.length)));
      notRun.delete(name);
      calls.set(name, (calls.get(name) ?? 0) + 1);
      return evaluate(name, ...rest);
    };
    const store = redisStore({ connection, clock: systemClock, wakeups: null });
    await store.declare([kind("mail"), kind("sms"), kind("noop")]);
    try {
      for (const [scene, play] of scenes()) {
        bench.progress(`slowScripts: ${scene}`);
        await server.command("SLOWLOG", "RESET");
        calls.clear();
        const noise = pings(server);
        await play({ url, store, connection, ends, pick: (full, quick) => bench.pick(full, quick) });
        await noise.stop();
        for (const run of (await server.command("HMGET", meta, "run", "former")) as unknown as (string | null)[])
          if (run !== null) for (const name of SCRIPT_NAMES) known.set(scriptsOf(run, SERVER_CLOCK)(name).sha, name);
        const entries = (await server.command("SLOWLOG", "GET", "-1")) as unknown as [
          number,
          number,
          number,
          string[],
        ][];
        for (const [, , us, [command = "", sha = ""]] of entries) {
          const script = known.get(sha);
          if (script === undefined && command !== PLAIN[0]) continue;
          const name = script === undefined ? NOISE : `${script} (${scene})`;
          const list = runs.get(name) ?? [];
          list.push(us);
          runs.set(name, list);
        }
        // Those that are not in the log were faster.
        for (const [script, count] of calls) {
          const list = runs.get(`${script} (${scene})`);
          if (list) list.push(...Array.from({ length: Math.max(0, count - list.length) }, () => LOGGED_US));
        }
      }
    } finally {
      await store.close();
      await server.drop(url);
    }
    const plain = runs.get(NOISE) ?? [0];
    runs.delete(NOISE);
    const all = [...runs]
      .map(([name, list]) => ({ name, list, longest: Math.max(...list) }))
      .toSorted((a, b) => b.longest - a.longest);
    const slow = all.reduce((sum, { list }) => sum + list.filter((us) => us > SLOW_US).length, 0);
    const ofSlowest = all.map(({ name, list, longest }) => {
      const over = list.filter((us) => us > SLOW_US).length;
      return `${name} ${median(list) / 1_000} to ${longest / 1_000}${over > 0 ? `, ${over} of ${list.length} over 10 ms` : ""}`;
    });
    return [
      {
        name: "slowScripts",
        unit: "ms",
        ours: (all[0]?.longest ?? 0) / 1_000,
        targets: [
          { text: "no script over 10 ms", value: slow, atMost: 0 },
          {
            text: "no script whose median is over 5 ms",
            value: Math.max(...all.map(({ list }) => median(list))) / 1_000,
            atMost: 5,
          },
          { text: "every script is run", value: notRun.size, atMost: 0 },
        ],
        detail: {
          jobs: million,
          notRun: [...notRun].join(", "),
          how: "the median and the longest run of each script by SLOWLOG, in ms, and in which scene",
          plain: `${PLAIN[0]} of ${SORTED} numbers: ${median(plain) / 1_000} to ${Math.max(...plain) / 1_000}, ${plain.length} runs`,
          longest: ofSlowest.slice(0, 40).join("; "),
        },
      },
    ];
  },
};

/** All of them take five minutes. OUTLIVE_BENCH_SCENES has a part of the names of those that are wanted: "schedules|check". */
function scenes(): [string, (stage: Stage) => Promise<void>][] {
  const wanted = new RegExp(process.env["OUTLIVE_BENCH_SCENES"] ?? "");
  return Object.entries(SCENES).filter(([scene]) => wanted.test(scene));
}

/** The plain command every 5 ms until it is stopped. */
function pings(server: TestedRedis): { stop(): Promise<void> } {
  const wire = server.wire();
  const state = { goesOn: true };
  const sent = (async () => {
    const sending = await wire;
    while (state.goesOn) {
      await sending.call(PLAIN, 60_000);
      await pause(5);
    }
    sending.close();
  })();
  return {
    async stop() {
      state.goesOn = false;
      await sent;
    },
  };
}

async function worker(store: Store, id: string): Promise<string> {
  await store.register(workerRecord(id));
  return id;
}

async function claimAndSettle({ store }: Stage): Promise<void> {
  const id = await worker(store, "claims");
  for (let turns = 0, ended: Parameters<Store["turn"]>[1] = []; turns < 5; turns++) {
    const { claimed } = await store.turn(id, ended, roomFor(1_000, ["noop"]));
    ended = claimed.map((job) => (turns % 2 === 0 ? SETTLE.succeed(job, `"result"`) : SETTLE.fail(job, 60_000)));
    if (turns === 4) await store.turn(id, ended, roomFor(0));
  }
  await store.leave(id);
}

async function manyKinds({ store, pick, url }: Stage): Promise<void> {
  const all = names("kind", pick(1_000, 100));
  await store.declare(all.map((name) => kind(name)));
  for (let round = 0; round < 5; round++)
    await store.enqueue(all.map((name) => draft({ id: `${name}-${round}`, kind: name })));
  const id = await worker(store, "kinds");
  for (;;) {
    const { claimed } = await store.turn(id, [], roomFor(500, all));
    if (claimed.length === 0) break;
    await store.turn(
      id,
      claimed.map((job) => SETTLE.succeed(job)),
      roomFor(0),
    );
  }
  await store.inspect.counts();
  await store.leave(id);
  await using engine = await open(url, { jobs: [noop], logger: false });
  await engine.counts();
}

async function dueAndExpired({ store, pick }: Stage): Promise<void> {
  const count = pick(10_000, 1_000);
  const ids = names("due", count);
  await store.enqueue(ids.map((id, at) => draft({ id, delayMs: 1, ...(at % 2 === 0 && { expiresMs: 1 }) })));
  const id = await worker(store, "due");
  for (;;) {
    const { claimed, nextDueInMs } = await store.turn(id, [], roomFor(1_000));
    if (claimed.length === 0 && nextDueInMs !== 0) break;
    await store.turn(
      id,
      claimed.map((job) => SETTLE.failForGood(job)),
      roomFor(0),
    );
  }
  await store.leave(id);
}

async function byHand({ store, pick }: Stage): Promise<void> {
  const ids = names("hand", pick(5_000, 500));
  await store.enqueue(ids.map((id) => draft(id)));
  for (const action of ["cancel", "retry", "cancel", "remove"] as const)
    for (let from = 0; from < ids.length; from += 100)
      await store.operate.change(ids.slice(from, from + 100), { do: action }, entryOf(action, action, "bench"));
}

function entryOf(id: string, action: AuditAction, actor: string): AuditEntry {
  return { id, actor, action, target: "bench", reason: null };
}

async function recoverMany({ store, pick }: Stage): Promise<void> {
  const count = pick(5_000, 500);
  const id = await worker(store, "dies");
  await store.turn(id, [], roomFor(count, ["noop"]));
  await store.beat(id, { loopLagMs: 0 });
  await store.beat(id, { loopLagMs: 0, leases: true });
  await store.inspect.suspects();
  await store.workers({ which: "all", heldIds: 10 });
  await store.heldBy({ overdue: { marginMs: 0 }, limit: 1_000 });
  await recoverAll(store, await condemned(store, id, "gone"));
  await store.inspect.incident(`incident of ${id}`);
  await store.inspect.incidents(100, null);
  await store.inspect.latestRecovery();
  const next = await worker(store, "isolates");
  const held = { count: 0, together: null, oldestFirst: false };
  for (let turns = 0; turns < 4; turns++) {
    const { claimed } = await store.turn(next, [], { ...roomFor(1_000, ["noop"]), suspects: held });
    await store.turn(
      next,
      claimed.map((job) => SETTLE.succeed(job)),
      roomFor(0),
    );
  }
  await store.leave(next);
}

async function condemned(store: Store, id: string, how: "gone" | "lost"): Promise<CondemnRequest> {
  const worker = (await store.workers({ which: "all" })).find((one) => one.id === id)!;
  const now = Date.now();
  return {
    worker,
    death: { how, lastSeenAliveAt: null, detectedAt: now, evidence: null },
    recovery: { id: `recovery of ${id}`, startedAt: now, by: "bench", integrity: "NOT_CHECKED", summary: null },
    incident: `incident of ${id}`,
  };
}

async function recoverAll(store: Store, request: CondemnRequest, decide = decideCrash): Promise<void> {
  while (!(await recoverBatch(store, request, 1_000, decide)).done);
}

/** A job that is on trial, so that it is asked how many others died meanwhile; and one of which the verdict can't be written, which the report keeps. */
async function culprit({ store }: Stage): Promise<void> {
  await store.declare([kind("sms", { limits: { errors: 3, timeouts: 3, crashes: 1 } })]);
  await store.enqueue(["culprit", "other"].map((id) => draft({ id, kind: "sms", delayMs: 0 })));
  const undeclared = draft({ id: "follows", kind: "nobody" });
  const refused: typeof decideCrash = (job, of) => {
    const verdict = decideCrash(job, of);
    return job.id === "other" ? { ...verdict, change: { ...verdict.change, follow: [undeclared] } } : verdict;
  };
  for (const death of [1, 2]) {
    const id = await worker(store, `dies-${death}`);
    const suspects = { count: 0, together: null, oldestFirst: false };
    await store.turn(id, [], { ...roomFor(2, ["sms"]), suspects });
    await recoverAll(store, await condemned(store, id, "gone"), death === 1 ? refused : decideCrash);
  }
  await store.declare([kind("sms")]);
}

async function keyed({ store, pick }: Stage): Promise<void> {
  const count = pick(20_000, 1_000);
  const limit = { name: "per-user", running: 100, intervalMs: null, burst: 1, strict: false };
  await store.declare([kind("mail", { keyed: [limit] })]);
  const keyOf = (at: number): JobKey => ({ id: 1_000 + (at % 500), limit: limit.name, key: `user-${at % 500}` });
  const drafts = names("keyed", count).map((id, at) => draft({ id, keys: [keyOf(at)] }));
  for (let from = 0; from < count; from += 5_000) await store.enqueue(drafts.slice(from, from + 5_000));
  const id = await worker(store, "keys");
  await store.operate.pauseKey!(keyOf(0), { reason: "", forMs: null });
  await store.operate.pauseKey!(keyOf(0), null);
  for (let idle = 0; idle < 3;) {
    const { claimed } = await store.turn(id, [], roomFor(1_000, ["mail"]));
    idle = claimed.length === 0 ? idle + 1 : 0;
    await store.turn(
      id,
      claimed.map((job) => SETTLE.succeed(job)),
      roomFor(0),
    );
  }
  await store.leave(id);
}

async function batch({ store, pick }: Stage): Promise<void> {
  const batches = store.batches!;
  const blocks = pick(20_000, 500);
  const draftOfBatch = { id: "big", kind: "sms", key: null, context: "null", priority: 0, blockRows: 50 };
  await batches.open({ ...draftOfBatch, tolerance: null, held: true });
  for (let from = 0; from < blocks; from += 500)
    await batches.append(
      "big",
      1,
      Array.from({ length: Math.min(500, blocks - from) }, (_, at) => ({
        number: from + at,
        rows: 50,
        rejected: [],
        job: draft({ id: `big:1:${from + at}`, kind: "sms" }),
      })),
    );
  await batches.seal("big", 1);
  for (let pieces = 0; pieces < 20 && (await batches.tend(1_000)); pieces++);
  await batches.abort("big");
  while (await batches.tend(1_000));
  await batches.fold(1_000);
  await batches.get(["big"]);
  await batches.blocks("big", 1, null, 1_000);
  await batches.outputs("big", 1, "rows", null, 1_000);
  await batches.outputFiles("big");
  await batches.setOutputs("big", 1, "{}");
  await store.upkeep.inconsistencies!();
  await batches.finish({ batch: "big", round: 1, from: "aborting", to: "aborted", follow: [] });
  await batches.list({}, 100, null);
  await batches.failures("big", 1, null, 1_000);
  await batches.reopen("big", 1, draft({ id: "big:2", kind: "sms" }));
  while ((await batches.purge(-1_000, 1_000)).more);
}

async function schedules({ store, pick }: Stage): Promise<void> {
  const all = names("schedule", pick(10_000, 500));
  const rows = store.schedules!;
  for (const name of all) await rows.write(scheduleRow(name, Date.now()));
  await rows.list(1_000, null);
  await rows.get(all[0]!);
  await rows.now();
  await rows.review();
  const id = await worker(store, "declares");
  await rows.declare(
    id,
    all.slice(0, 1_000).map((name) => ({ schedule: name, digest: "d1", zoneData: "2026b" })),
  );
  await rows.declared();
  for (;;) {
    const { due, now } = await rows.due(MAX_DUE);
    if (due.length === 0) break;
    await rows.fire(
      due.map(({ row }) => ({
        row: { ...row, dueAt: now + 86_400_000 },
        jobs: [{ draft: draft({ id: `${row.name}/${now}`, kind: "mail" }), at: now, caughtUp: false }],
      })),
    );
  }
  // Ten that were due a hundred times each while no worker ran.
  const late = (await rows.list(10, null)).map((row) => ({
    row: { ...row, version: row.version + 1 },
    jobs: names(`${row.name}/late-`, 100).map((id) => ({
      draft: draft({ id, kind: "mail" }),
      at: Date.now(),
      caughtUp: true,
    })),
  }));
  await rows.fire(late);
  await rows.fired(all[0]!, 100);
  await rows.occurrences(all.slice(0, 1_000).map((name) => `${name}/1`));
  for (const name of all) await rows.remove(name, null);
  await store.leave(id);
}

async function collections({ store, pick }: Stage): Promise<void> {
  const parts = store.collections!;
  const count = pick(5_000, 300);
  for (const step of ["request", "notify", "ended", "clean-up"] as const)
    await store.declare([kind(jobKind("mail", step))]);
  const ids = names("collection", pick(1_000, 50));
  for (const id of ids)
    await parts.open({
      id,
      kind: "mail",
      input: "{}",
      series: [{ name: "files", expected: count }],
      idleMs: 60_000,
      totalMs: 60_000,
      keepMs: 0,
      follow: [jobOf({ id, kind: "mail" }, "request")],
    });
  const [first] = ids;
  // Every second ordinal first: the most gaps that there can be.
  for (const from of [1, 2])
    for (let ordinal = from; ordinal <= count; ordinal += 1_000)
      await parts.put(
        Array.from({ length: 500 }, (_, at) => ordinal + 2 * at)
          .filter((one) => one <= count)
          .map((one) => partOf(first!, one)),
      );
  await parts.known(
    Array.from({ length: 1_000 }, (_, at) => ({ collection: first!, series: "files", ordinal: at + 1 })),
  );
  await parts.announce(ids[1]!, { files: count });
  await parts.parts(first!, "files", 0, count);
  await parts.put(Array.from({ length: 500 }, (_, at) => partOf(ids[1]!, 2 * at + 1)));
  await parts.missing(ids[1]!, "files", 1_000);
  await parts.list({}, 1_000, null);
  await parts.counts();
  const messages = names("parked", pick(5_000, 300)).map((id) => ({
    id,
    kind: "mail",
    collection: first!,
    series: "files",
    ordinal: 1,
    reason: "bench",
    blob: null,
    bytes: 0,
  }));
  await parts.park(messages);
  await parts.parked({}, 1_000, null);
  await parts.unpark(messages.map(({ id }) => id));
  await parts.due(200);
  for (const row of await parts.get(ids))
    await parts.step({
      collection: row.id,
      from: STEPS.cancelled,
      to: "cancelled",
      why: "bench",
      follow: followOf(row, "cancelled"),
    });
  for (const id of ids) while (await parts.remove(id, 1_000));
}

function partOf(collection: string, ordinal: number): Part {
  return { collection, series: "files", ordinal, blob: `${collection}/${ordinal}`, bytes: 10, sha256: `${ordinal}` };
}

/** Jobs that wait for a signal each, one that waits for all of them, and one that has as many signals as are kept. */
async function signals({ store, pick }: Stage): Promise<void> {
  const ids = names("waits", pick(2_000, 200));
  await store.enqueue([...ids, "parent"].map((id) => draft({ id, kind: "sms" })));
  const id = await worker(store, "waits");
  for (let left = ids.length + 1; left > 0;) {
    const { claimed } = await store.turn(id, [], roomFor(250, ["sms"]));
    left -= claimed.length;
    const ended = claimed.map((job) => {
      const until = job.lease.jobId === "parent" ? { jobs: ids } : { signal: "go" };
      const view = { id: job.lease.jobId, state: "running", counters: job.counters } as const;
      return { lease: job.lease, change: wait(view, { step: "run.wait#1", forMs: null, until }) };
    });
    await store.turn(id, ended, roomFor(0));
  }
  for (let at = 0; at < 1_000; at++)
    await store.operate.signal({ job: "parent", name: "other", payload: `"${"x".repeat(100)}"`, id: `kept-${at}` });
  for (const job of ids) await store.operate.signal({ job, name: "go", payload: "1", id: `go-${job}` });
  for (;;) {
    const { claimed, nextDueInMs } = await store.turn(id, [], roomFor(250, ["sms"]));
    if (claimed.length === 0 && nextDueInMs !== 0) break;
    await store.turn(
      id,
      claimed.map((job) => SETTLE.succeed(job)),
      roomFor(0),
    );
  }
  await store.leave(id);
}

async function audit({ store, pick }: Stage): Promise<void> {
  for (let at = 0; at < pick(10_000, 500); at += 100)
    await Promise.all(
      Array.from({ length: 100 }, (_, n) =>
        store.operate.setPaused("sms", n % 2 === 0, undefined, entryOf(`entry-${at + n}`, "pause", `person-${n}`)),
      ),
    );
  await store.operate.setPaused("sms", false);
  await store.inspect.audit({ actor: "nobody", limit: 50 });
}

async function purge({ store, pick }: Stage): Promise<void> {
  for (let pieces = 0; pieces < pick(200, 20); pieces++)
    if (
      !(await store.purge({ finishedOlderThanMs: 0, incidentsOlderThanMs: 0, limit: store.purgesAtOnce ?? 500 })).more
    )
      break;
}

async function checkAndRepair({ store, connection, pick }: Stage): Promise<void> {
  const all = names("kept", pick(2_000, 200));
  for (const name of all) await store.schedules!.write(scheduleRow(name, Date.now() + 86_400_000));
  // A check calls it only while something is left.
  await connection.eval("forgetWaits");
  await integrity(connection);
  await connection.eval("liveWorkers", ["1"]);
  await repair(connection);
}

/** What people and programs ask of a store of a million, and what an attempt writes. */
async function readsAndWrites({ store, connection, ends, pick }: Stage): Promise<void> {
  const { inspect, operate, upkeep } = store;
  const limit = { name: "read", running: 1, intervalMs: null, burst: 1, strict: false };
  await store.declare([kind("mail"), kind("sms", { keyed: [limit] })]);
  const [family] = names("family", 1);
  await store.enqueue([draft({ id: family!, kind: "mail", priority: 100 })]);
  for (const filter of [
    {},
    { state: "running" },
    { state: "dead" },
    { kind: "sms" },
    { parent: family! },
    { text: "no such text" },
    { createdAfter: Date.now() + 86_400_000 },
    { createdBefore: 1 },
  ] as const)
    await inspect.list(filter, 50, null);
  const ids = names("ahead", pick(1_000, 100));
  await store.enqueue(ids.slice(0, 100).map((id) => draft({ id, kind: "mail", delayMs: 60_000 })));
  await store.enqueue(ids.map((id) => draft({ id, kind: "mail", priority: -1_000 })));
  await inspect.ahead(ids.at(-1)!);
  await inspect.outcomes(ids);
  await inspect.isLimited("mail");
  const key = (at: number): JobKey => ({ id: 50_000 + at, limit: limit.name, key: `key-${at}` });
  await store.enqueue(ids.map((_, at) => draft({ id: `keyed-read-${at}`, kind: "sms", keys: [key(at)] })));
  await inspect.keys!({ limit: null, most: 1_000 });
  await inspect.keys!({ key: key(0) });
  await operate.setLimit(key(0), { running: 2 });
  await upkeep.pending!(["mail", "sms", "noop"]);
  await inspect.health();
  const id = await worker(store, "writes");
  const { claimed } = await store.turn(id, [], roomFor(1, ["mail"]));
  const [job] = claimed;
  if (job) {
    const { lease } = job;
    const write = (one: AttemptWrite) => store.write([{ lease, write: one }]);
    const drafts = (count: number, name: string) =>
      names(name, count).map((one) => draft({ id: one, kind: "mail", delayMs: 9e8 }));
    await store.write(
      ids.map((name) => ({ lease, write: { type: "step", name, result: `"${"x".repeat(100)}"` } as const })),
    );
    await store.write(
      ids.map((name) => ({ lease, write: { type: "signal", step: `of ${name}`, name, hasEnded: false } as const })),
    );
    await store.write(ids.map((message) => ({ lease, write: { type: "log", message } as const })));
    await write({ type: "enqueue", drafts: drafts(200, "some-children") });
    await write({ type: "enqueue", drafts: drafts(pick(5_000, 500), "many-children") });
    const view = { id: lease.jobId, state: "running", counters: job.counters } as const;
    const until = { jobs: names("many-children", pick(5_000, 500)) };
    await store.turn(id, [{ lease, change: wait(view, { step: "run.wait#1", forMs: null, until }) }], roomFor(0));
    await operate.cancel(lease.jobId, "bench", { children: true });
    while ((await store.turn(id, [], roomFor(0))).nextDueInMs === 0);
    await operate.retry(lease.jobId, "bench");
  }
  for (const { script, args } of ends) await connection.eval(script, args);
  await connection.eval("lead", ["bench", "", "1500", ""]);
  await store.leave(id);
}

/** Contact with a worker of 5,000 is lost, which turns out to be its death; and another one comes again after the server has. */
async function losses({ store, connection, pick }: Stage): Promise<void> {
  const count = pick(5_000, 500);
  const lost = await worker(store, "lost");
  await store.turn(lost, [], roomFor(count, ["noop"]));
  await recoverAll(store, await condemned(store, lost, "lost"));
  await store.operate.noteDeath(lost, "the bench says so");
  for (const { incident } of await store.losses.open()) {
    await store.losses.resolve(lost, "died");
    for (;;) {
      const jobs = await store.losses.jobs(incident, 250);
      const isClosed = await store.losses.judge(
        incident,
        jobs.flatMap((job) => decideLoss(job, "died") ?? []),
      );
      if (isClosed || jobs.length === 0) break;
    }
  }
  const before = await worker(store, "before");
  await store.turn(before, [], roomFor(count, ["noop"]));
  const after = await worker(store, "in between");
  await store.leave(after);
  // As another process of the server, which has none of the scripts.
  await connection.command("HSET", `${connection.tag}meta`, "server", "another");
  await connection.command("SCRIPT", "FLUSH");
  const again = workerRecord("again", { predecessor: before });
  await store.register(again);
  await store.leave("again");
  await connection.eval("noteLoss", ["1", "1"]);
  await connection.eval("noteResent", ["0", "0", "0"]);
  await store.upkeep.noticeRestore!();
  await connection.eval("opening");
  await connection.eval("noteOpening", ["{}"]);
  await store.upkeep.raiseEpoch();
}

/** What layout 3 has more than layout 2 is taken away; the next that opens the store adds it. */
async function fromLayout2({ url, connection }: Stage): Promise<void> {
  const { tag } = connection;
  const kinds = Number(await connection.command("HGET", `${tag}meta`, "kinds"));
  for (let n = 1; n <= kinds; n++) {
    const fields = ["jobs", "rd", "rn"];
    const counts = (await connection.command("HMGET", `${tag}kc`, ...fields.map((name) => `${name}:${n}`))) as string[];
    await connection.command("HSET", `${tag}k:${n}`, ...fields.flatMap((name, at) => [name, counts[at] ?? "0"]));
  }
  await connection.command("DEL", `${tag}kc`, `${tag}rk`, `${tag}uk`, `${tag}kp`);
  await connection.command("HSET", `${tag}meta`, "schema", String(SCHEMA_VERSION - 1));
  const engine = await open(url, { jobs: [noop], logger: false });
  await engine.close();
}
