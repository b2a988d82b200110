// A worker from start to stop: what it takes, how much at once, how it ends, and what it tells.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import {
  type EngineEvent,
  type Engine,
  ErrorCode,
  job,
  type JobContract,
  open,
  OutliveError,
} from "../../src/index.ts";
import { Place, untilState, untilTrue } from "../support/processes.ts";
import { AT_ONCE, forever, memory, says, script, untilAborted } from "./engines.ts";

/** A kind whose handlers wait until they are let go, and how many are inside now. */
function crowd(name: string): {
  kind: JobContract<number>;
  inside: () => number;
  most: () => number;
  letGo: () => void;
} {
  const gate = Promise.withResolvers<void>();
  let inside = 0;
  let most = 0;
  const kind = job<number>(name);
  kind.handle(async () => {
    most = Math.max(most, ++inside);
    await gate.promise;
    inside--;
  });
  return { kind, inside: () => inside, most: () => most, letGo: gate.resolve };
}

const numbers = (length: number): number[] => Array.from({ length }, (_, n) => n);
const allDone = (engine: Engine): Promise<unknown> =>
  untilTrue(
    () => engine.counts(),
    (counts) => counts.every(({ ready, running, delayed }) => ready + running + delayed === 0),
    "all jobs have ended",
  );

test("a worker runs as many jobs at once as its concurrency, and never more", async (t) => {
  const { kind, inside, most, letGo } = crowd("crowd");
  const engine = await memory(t, [kind]);
  await engine.enqueueMany(kind, numbers(30));
  const worker = await engine.start({ concurrency: 4 });
  await untilTrue(inside, (n) => n === 4, "four are inside");
  assert.equal(worker.held, 4);
  assert.equal((await engine.counts())[0]?.running, 4);
  letGo();
  await allDone(engine);
  assert.equal(most(), 4);
});

test("ten is the default", async (t) => {
  const { kind, inside, most, letGo } = crowd("crowd");
  const engine = await memory(t, [kind]);
  await engine.enqueueMany(kind, numbers(30));
  await engine.start();
  await untilTrue(inside, (n) => n === 10, "ten are inside");
  letGo();
  await allDone(engine);
  assert.equal(most(), 10);
});

test("a limit of one kind holds for that kind and leaves the others their own room", async (t) => {
  const few = crowd("few");
  const many = crowd("many");
  const engine = await memory(t, [few.kind, many.kind], { poll: "10ms" });
  await engine.enqueueMany(few.kind, numbers(20));
  await engine.enqueueMany(many.kind, numbers(20));
  const worker = await engine.start({ concurrency: { few: 2 } });
  await untilTrue(
    () => few.inside() + many.inside(),
    (n) => n === 12,
    "two and ten are inside",
  );
  assert.deepEqual([few.inside(), many.inside(), worker.held], [2, 10, 12]);
  few.letGo();
  many.letGo();
  await allDone(engine);
  assert.equal(few.most(), 2);
});

test(
  "kinds that have no limit of their own share ten, also while the limited ones have nothing to do",
  {},
  async (t) => {
    const few = crowd("few");
    const many = crowd("many");
    const engine = await memory(t, [few.kind, many.kind]);
    await engine.enqueueMany(many.kind, numbers(30));
    await engine.start({ concurrency: { few: 2 } });
    await untilTrue(many.inside, (n) => n >= 10, "ten are inside");
    const { id } = await engine.enqueue(few.kind, 1);
    many.letGo();
    few.letGo();
    await untilState(engine, id, "succeeded");
    await allDone(engine);
    assert.equal(many.most(), 10);
  },
);

test("a kind with its own limit starts the next job as soon as one has ended, without waiting for the next poll", async (t) => {
  const one = job<number>("one").handle(() => {});
  // If it waited for polls, this would not end.
  const engine = await memory(t, [one], { poll: "1h" });
  await engine.enqueueMany(one, numbers(10));
  await engine.start({ concurrency: { one: 1 } });
  await allDone(engine);
});

test("limits for all kinds add up to the total", async (t) => {
  const a = crowd("a");
  const b = crowd("b");
  const engine = await memory(t, [a.kind, b.kind], { poll: "10ms" });
  for (const { kind } of [a, b]) await engine.enqueueMany(kind, numbers(10));
  await engine.start({ concurrency: { a: 1, b: 3 } });
  await untilTrue(
    () => a.inside() + b.inside(),
    (n) => n === 4,
    "four are inside",
  );
  assert.deepEqual([a.inside(), b.inside()], [1, 3]);
  a.letGo();
  b.letGo();
  await allDone(engine);
  assert.deepEqual([a.most(), b.most()], [1, 3]);
});

test("concurrency that can't be is refused and names the option", async (t) => {
  const { kind } = crowd("crowd");
  const engine = await memory(t, [kind]);
  for (const concurrency of [0, -1, 1.5, 10_001, { crowd: 0 }, "5" as unknown as number])
    await assert.rejects(engine.start({ concurrency }), says(ErrorCode.optionInvalid, "concurrency"));
  await assert.rejects(
    engine.start({ concurrency: { crowed: 1 } }),
    says(ErrorCode.optionInvalid, "concurrency.crowed", "Did you mean crowd?"),
  );
  assert.deepEqual(await engine.workers(), []);
});

test("with only, a worker takes nothing but those kinds", async (t) => {
  const ran: string[] = [];
  const a = job<null>("a").handle(() => void ran.push("a"));
  const b = job<null>("b").handle(() => void ran.push("b"));
  const engine = await memory(t, [a, b]);
  await engine.enqueue(b, null, { priority: 9 });
  await engine.enqueue(a, null);
  await engine.runUntilIdle({ only: [a] });
  assert.deepEqual(ran, ["a"]);
  assert.equal((await engine.counts()).find(({ kind }) => kind === "b")?.ready, 1);
});

test("a worker without any handler, or started for a kind without one, says so", async (t) => {
  const without = job<null>("without");
  const stranger = job<null>("stranger").handle(() => {});
  const engine = await memory(t, [without]);
  await assert.rejects(engine.start(), says(ErrorCode.kindUnknown, "nothing to run", ".handle"));
  await assert.rejects(engine.work(), says(ErrorCode.kindUnknown));
  await assert.rejects(engine.start({ only: [without] }), says(ErrorCode.kindUnknown, "without has no handler"));
  await assert.rejects(
    engine.start({ only: [stranger] }),
    says(ErrorCode.kindUnknown, '"stranger"', "It has without."),
  );
  assert.deepEqual(await engine.workers({ which: "all" }), []);
});

test("a kind that this worker does not know stays queued and is listed, never failed", async (t) => {
  const place = new Place(t);
  const known = job<null>("known").handle(() => {});
  const unknown = job<null>("unknown");
  const newer = await place.engine({ jobs: [known, unknown] });
  const { id } = await newer.enqueue(unknown, null, { priority: 100 });
  const older = await place.engine({ jobs: [known], heartbeat: {} });
  await older.start();
  const { id: other } = await newer.enqueue(known, null);
  await untilState(newer, other, "succeeded");
  const waiting = (await older.get(id))!;
  assert.deepEqual([waiting.state, waiting.attempt], ["queued", 0]);
  assert.equal((await older.counts()).find(({ kind }) => kind === "unknown")?.ready, 1);
});

test("a second start of one engine is an error that names the worker that runs", async (t) => {
  const { kind, letGo } = crowd("crowd");
  letGo();
  const engine = await memory(t, [kind]);
  const worker = await engine.start();
  await assert.rejects(engine.start(), says(ErrorCode.wrongState, worker.id, "Stop it first"));
  await worker.stop();
  await (await engine.start()).stop();
});

test("of two starts in one moment one is refused", async (t) => {
  const { kind } = crowd("crowd");
  const engine = await memory(t, [kind]);
  const both = await Promise.allSettled([engine.start(), engine.start()]);
  for (const one of both) if (one.status === "fulfilled") t.after(() => one.value.stop({ grace: "0ms" }));
  assert.deepEqual(both.map(({ status }) => status).toSorted(), ["fulfilled", "rejected"]);
});

test("work runs until its signal aborts, and then lets what runs finish", async (t) => {
  const { kind, inside, letGo } = crowd("crowd");
  const engine = await memory(t, [kind]);
  await engine.enqueueMany(kind, numbers(3));
  const stop = new AbortController();
  const worked = engine.work({ signal: stop.signal, concurrency: 1 });
  await untilTrue(inside, (n) => n === 1, "one is inside");
  stop.abort();
  letGo();
  await worked;
  const [counts] = await engine.counts();
  assert.deepEqual([counts?.succeeded, counts?.ready, counts?.running], [1, 2, 0]);
});

test("work with a signal that is aborted already takes nothing", async (t) => {
  const { kind } = crowd("crowd");
  const engine = await memory(t, [kind]);
  await engine.enqueue(kind, 1);
  await engine.work({ signal: AbortSignal.abort(), grace: "0ms" });
  const [counts] = await engine.counts();
  assert.deepEqual([counts?.ready, counts?.running], [1, 0]);
});

test("stop waits for what runs and takes nothing more", async (t) => {
  const { kind, inside, letGo } = crowd("crowd");
  const engine = await memory(t, [kind]);
  await engine.enqueueMany(kind, numbers(5));
  const worker = await engine.start({ concurrency: 2 });
  await untilTrue(inside, (n) => n === 2, "two are inside");
  const stopped = worker.stop();
  letGo();
  await stopped;
  await worker.stopped;
  const [counts] = await engine.counts();
  assert.deepEqual([counts?.succeeded, counts?.ready, counts?.running], [2, 3, 0]);
});

test("stop aborts handlers in the last fifth of the grace, and releases at no cost what does not end", async (t) => {
  const reasons: string[] = [];
  const polite = job<null>("polite").handle(async (_, run) => {
    reasons.push((await untilAborted(run.signal)).why);
    return "in time";
  });
  const deaf = job<null>("deaf").handle(forever);
  const released: number[] = [];
  const engine = await memory(t, [polite, deaf]);
  engine.on("worker.stopped", (event) => released.push(event.released));
  const { id: first } = await engine.enqueue(polite, null);
  const { id: second } = await engine.enqueue(deaf, null);
  const worker = await engine.start();
  await untilState(engine, second, "running");
  await worker.stop({ grace: "200ms" });
  assert.deepEqual(reasons, ["shutdown"]);
  assert.equal((await engine.get(first))?.result, "in time");
  const given = (await engine.get(second))!;
  assert.deepEqual([given.state, given.lastOutcome, given.counters.interruptions], ["queued", "released", 1]);
  assert.deepEqual([given.counters.errors, given.counters.timeouts, given.counters.crashes], [0, 0, 0]);
  assert.equal(given.history[0]?.reason, "its worker shut down");
  assert.deepEqual(released, [1]);
});

test("stop with no grace releases everything at once, and a second stop is the same stop", async (t) => {
  const deaf = job<number>("deaf").handle(forever);
  const engine = await memory(t, [deaf]);
  await engine.enqueueMany(deaf, numbers(5));
  const worker = await engine.start();
  await untilTrue(
    () => worker.held,
    (held) => held === 5,
    "all are held",
  );
  await Promise.all([worker.stop({ grace: "0ms" }), worker.stop(), worker.stopped]);
  assert.equal((await engine.counts())[0]?.ready, 5);
  assert.equal((await engine.health()).worker, null);
});

test("close stops the worker first, and releases what its grace does not let finish", async (t) => {
  const place = new Place(t);
  const deaf = job<null>("deaf").handle(forever);
  const engine = await place.engine({ jobs: [deaf], heartbeat: {} });
  const { id } = await engine.enqueue(deaf, null);
  const worker = await engine.start();
  await untilState(engine, id, "running");
  await engine.close({ grace: "0ms" });
  await worker.stopped;
  const next = await place.engine({ jobs: [deaf] });
  assert.deepEqual([(await next.get(id))?.state, await next.incidents()], ["queued", []]);
  assert.deepEqual(
    (await next.workers({ which: "all" })).map(({ state }) => state),
    ["stopped"],
  );
});

test("a close while the worker is starting leaves nothing running: the process ends", {}, async (t) => {
  const place = new Place(t);
  const { code, stderr } = await script(
    `const { job, open } = await import(SRC + "index.ts");
       const note = job("note").handle(() => {});
       const engine = await open(ARGS[0], { jobs: [note], logger: false });
       const started = engine.start().catch(() => {});
       await engine.close({ grace: "0ms" });
       await started;
       // Reached only by a process that something keeps.
       setTimeout(() => process.exit(7), 2_000).unref();`,
    { args: [place.url] },
  );
  assert.equal(code, 0, stderr);
});

test("a worker that is taken for dead while its thread is still starting begins again, and its process can end", async (t) => {
  const place = new Place(t);
  const { code, stdout, stderr } = await script(
    `const { job, open } = await import(SRC + "index.ts");
       const { DatabaseSync } = await import("node:sqlite");
       const again = Promise.withResolvers();
       const told = [];
       // Claimed before the thread is up: its worker is over by the time that this has ended.
       const note = job("note").handle(() => {
         using raw = new DatabaseSync(ARGS[0].slice("sqlite:".length));
         raw.exec("UPDATE outlive_workers SET state = 'gone' WHERE state = 'live'");
       });
       const onEvent = ({ name }) => {
         if (!/^worker[.](started|disowned)$/.test(name)) return;
         told.push(name);
         if (told.length === 3) again.resolve();
       };
       const engine = await open(ARGS[0], { jobs: [note], logger: false, onEvent });
       await engine.enqueue(note, {});
       await engine.start();
       await again.promise;
       await engine.close({ grace: "0ms" });
       console.log(told.join(" "));
       // Reached only by a process that something keeps.
       setTimeout(() => process.exit(7), 5_000).unref();`,
    { args: [place.url] },
  );
  // The loop hears of both its new life and the end of the first in whichever order a slow disk gives them.
  assert.deepEqual(
    stdout.trim().split(" ").toSorted(),
    ["worker.disowned", "worker.started", "worker.started"],
    stderr,
  );
  assert.equal(code, 0, stderr);
});

test("a handler that blocks the loop for longer than a lease, before the loop has heard that its maintenance is up, keeps its lease", async (t) => {
  const place = new Place(t);
  const lost: object[] = [];
  const blocks = job<null>("blocks");
  // At once at the first claim: the thread has just been started, and says that it is up to a loop that does not listen.
  blocks.handle((_, run) => {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 7_000);
    return run.attempt;
  });
  const engine = await open(place.url, {
    jobs: [blocks],
    logger: false,
    heartbeat: { interval: "200ms", lease: "5s", probe: "50ms", sweep: "1s" },
  });
  t.after(() => engine.close({ grace: "0ms" }));
  engine.on("lease.lost", (event) => lost.push(event));
  const { id } = await engine.enqueue(blocks, null);
  await engine.start();
  await untilState(engine, id, "succeeded");
  assert.deepEqual(lost, []);
});

test("a worker also starts in a process whose program was passed as a string, and its thread runs no preload of the user", async (t) => {
  const place = new Place(t);
  const preload = join(place.folder, "preload.mjs");
  writeFileSync(preload, "console.log('preloaded');");
  const text = `import { job, open } from ${JSON.stringify(new URL("../../src/index.ts", import.meta.url).href)};
      const engine = await open(process.argv[1], { jobs: [job("note").handle(() => {})] });
      await (await engine.start()).stop();
      await engine.close();
      console.log("stopped");`;
  const { stdout, stderr } = spawnSync(
    process.execPath,
    ["--import", preload, "--input-type=module", "-e", text, "--", place.url],
    { encoding: "utf8" },
  );
  assert.equal(stdout, "preloaded\nstopped\n", stderr);
});

test("await using closes the engine, and what is closed says so", async () => {
  const note = job<null>("note");
  let kept: Engine;
  {
    await using engine = await open("sqlite::memory:", { jobs: [note], logger: false });
    kept = engine;
    await engine.enqueue(note, null);
  }
  await assert.rejects(kept.enqueue(note, null), says(ErrorCode.closed, "open again"));
  await kept.close();
});

test("every call of a closed engine is refused with the same code", async () => {
  const note = job<null>("note").handle(() => {});
  const engine = await open("sqlite::memory:", { jobs: [note], logger: false });
  await engine.close();
  for (const ask of [
    () => engine.get("x"),
    () => engine.list(),
    () => engine.counts(),
    () => engine.workers(),
    () => engine.incidents(),
    () => engine.report(),
    () => engine.health(),
    () => engine.operator.recover(),
    () => engine.cancel("x"),
    () => engine.start(),
  ])
    await assert.rejects(ask(), says(ErrorCode.closed));
});

test("runUntilIdle runs what is ready and what that makes ready, and leaves what waits for its time", async (t) => {
  const ran: string[] = [];
  const child = job<string>("child").handle((name) => void ran.push(name));
  const parent = job<string>("parent", { retry: { backoff: AT_ONCE } });
  parent.handle(async (name, run) => {
    if (run.attempt === 1) throw new Error("again");
    await run.enqueue(child, `${name} of parent`);
    ran.push(name);
  });
  const engine = await memory(t, [parent, child]);
  await engine.enqueue(parent, "one");
  await engine.enqueue(child, "later", { delay: "1h" });
  const counts = await engine.runUntilIdle();
  assert.deepEqual(ran.toSorted(), ["one", "one of parent"]);
  assert.deepEqual(
    counts.map(({ kind, succeeded, delayed }) => [kind, succeeded, delayed]),
    [
      ["child", 1, 1],
      ["parent", 1, 0],
    ],
  );
  assert.equal((await engine.health()).worker, null, "its worker has left");
});

test("runUntilIdle does not wait for kinds that are paused or have no handler, and is refused on a file", async (t) => {
  const paused = job<null>("paused").handle(() => {});
  const without = job<null>("without");
  const engine = await memory(t, [paused, without]);
  await engine.pause(paused);
  await engine.enqueue(paused, null);
  await engine.enqueue(without, null);
  await engine.runUntilIdle();
  const place = new Place(t);
  const onFile = await place.engine();
  await assert.rejects(onFile.runUntilIdle(), says(ErrorCode.wrongState, "sqlite::memory:"));
});

test("FR-001 FR-002 FR-004 FR-005 AC-001 AC-013 open reports its recovery before it resolves: started, then completed, and nothing in between if nothing was found", async (t) => {
  const events: EngineEvent[] = [];
  await memory(t, [], { onEvent: (event) => void events.push(event) });
  assert.deepEqual(
    events.map(({ name }) => name),
    ["recovery.started", "recovery.completed"],
  );
  const [started, completed] = events as [EngineEvent & { recovery: string }, EngineEvent & { recovery: string }];
  assert.equal(started.recovery, completed.recovery);
  assert.deepEqual(
    { ...completed, durationMs: 0 },
    {
      name: "recovery.completed",
      recovery: started.recovery,
      by: "open",
      incidents: [],
      jobs: 0,
      failed: 0,
      durationMs: 0,
    },
  );
});

test("job.succeeded goes only to listeners that ask for it by name", async (t) => {
  const all: string[] = [];
  const named: string[] = [];
  const note = job<null>("note").handle(() => {});
  const engine = await memory(t, [note], { onEvent: ({ name }) => void all.push(name) });
  await engine.enqueue(note, null);
  await engine.runUntilIdle();
  const stop = engine.on("job.succeeded", ({ jobId, kind, attempt, durationMs }) => {
    assert.ok(durationMs >= 0);
    named.push(`${jobId} ${kind} ${attempt}`);
  });
  const { id } = await engine.enqueue(note, null);
  await engine.runUntilIdle();
  stop();
  await engine.enqueue(note, null);
  await engine.runUntilIdle();
  assert.deepEqual(named, [`${id} note 1`]);
  assert.ok(all.includes("worker.started") && all.includes("worker.stopped"));
  assert.ok(!all.includes("job.succeeded"));
});

test("a listener that throws harms neither the others nor the engine, and is reported", async (t) => {
  const heard: string[] = [];
  const note = job<null>("note").handle(() => {});
  const engine = await memory(t, [note], {
    onEvent: () => {
      throw new Error("onEvent broke");
    },
  });
  engine.on("job.succeeded", () => {
    throw new Error("a listener broke");
  });
  engine.on("job.succeeded", () => void heard.push("the second"));
  engine.on("listener.failed", ({ event, error }) => void heard.push(`${event}: ${error.message}`));
  const { id } = await engine.enqueue(note, null);
  await engine.runUntilIdle();
  assert.equal((await engine.get(id))?.state, "succeeded");
  assert.ok(heard.includes("the second"));
  assert.ok(heard.includes("job.succeeded: a listener broke"));
  assert.ok(heard.includes("worker.started: onEvent broke"));
});

test("a listener for an event that does not exist is refused, with the name that was meant", async (t) => {
  const engine = await memory(t, []);
  assert.throws(
    () => engine.on("job.succeded" as never, () => {}),
    says(ErrorCode.optionInvalid, 'There is no event "job.succeded".', "Did you mean job.succeeded?"),
  );
  // A name that every object has is not an event either.
  assert.throws(() => engine.on("constructor" as never, () => {}), says(ErrorCode.optionInvalid));
});

test("FR-003 NFR-007 AC-014 a logger gets one line per fact with its data; without one, warnings go to stderr; with false, nothing does", async (t) => {
  const lines: [string, string, object | undefined][] = [];
  const take =
    (level: string) =>
    (text: string, data?: object): void =>
      void lines.push([level, text, data]);
  const console1 = ["log", "info", "warn", "error"].map((name) =>
    t.mock.method(console, name as "log", (text: string) => void lines.push([`console.${name}`, text, undefined])),
  );
  const bad = job<null>("bad", { retry: { attempts: 1 } });
  bad.handle(() => {
    throw new Error("oops");
  });
  const told: string[][] = [];
  for (const logger of [{ info: take("info"), warn: take("warn"), error: take("error") }, undefined, false] as const) {
    const engine = await open("sqlite::memory:", { jobs: [bad], ...(logger === undefined ? {} : { logger }) });
    await engine.enqueue(bad, null, { id: "b1" });
    await engine.runUntilIdle();
    await engine.close();
    told.push(
      lines
        .splice(0)
        .map(([level, text, data]) => `${level} ${text}${data ? ` ${Object.keys(data)[0]}` : ""}`)
        .map((line) => line.replace(/\d+ ms/, "0 ms")),
    );
  }
  for (const mocked of console1) mocked.mock.restore();
  assert.deepEqual(told, [
    [
      "info start-up recovery: nothing to recover (0 ms) recovery",
      "warn attempt 1 of job b1 (bad) failed: oops jobId",
      "error job b1 (bad) is dead: error 1 of 1, no more are allowed: oops jobId",
    ],
    [
      "console.warn [outlive] attempt 1 of job b1 (bad) failed: oops",
      "console.error [outlive] job b1 (bad) is dead: error 1 of 1, no more are allowed: oops",
    ],
    [],
  ]);
});

test("a logger that throws does no harm", async (t) => {
  const broken = (): never => {
    throw new Error("the disk of the log is full");
  };
  const bad = job<null>("bad", { retry: { attempts: 1 } });
  bad.handle(broken);
  const engine = await memory(t, [bad], { logger: { info: broken, warn: broken, error: broken } });
  const { id } = await engine.enqueue(bad, null);
  await engine.runUntilIdle();
  assert.equal((await engine.get(id))?.state, "dead");
});

test("finished jobs go after their retention with all that belongs to them; unfinished ones stay", async (t) => {
  const note = job<number>("note", { retry: { attempts: 1 } });
  note.handle(async (n, run) => {
    await run.step("one", () => n);
    await run.log("line");
    if (n === 1) throw new Error("no");
  });
  const engine = await memory(t, [note], { retention: { finished: "50ms" }, heartbeat: { sweep: "100ms" } });
  const { id: waiting } = await engine.enqueue(note, 0, { delay: "1h" });
  const ids = await Promise.all(numbers(5).map((n) => engine.enqueue(note, n)));
  const { id: last } = await engine.enqueue(note, 9);
  await engine.start();
  await untilTrue(
    () => Promise.all(ids.map(({ id }) => engine.get(id))),
    (found) => found.every((one) => one === null),
    "all that are old enough are gone",
  );
  assert.equal((await engine.get(waiting))?.state, "queued");
  const [counts] = await engine.counts();
  assert.deepEqual([counts?.succeeded, counts?.dead, counts?.delayed], [1, 0, 1], "counts go with them");
  assert.equal((await engine.get(last))?.state, "succeeded", "the job with the highest number stays");
});

test("options that can't be are refused before anything is opened, and name the option", async () => {
  const cases: [object, string][] = [
    [{ heartbeats: {} }, "heartbeats"],
    [{ heartbeat: { interval: "10ms" } }, "heartbeat.interval"],
    [{ heartbeat: { interval: "1s", lease: "1500ms" } }, "heartbeat.lease"],
    [{ heartbeat: { interval: "1s", probe: "5s" } }, "heartbeat.probe"],
    [{ heartbeat: { sweep: "1ms" } }, "heartbeat.sweep"],
    [{ heartbeat: { interval: 30 } }, "heartbeat.interval"],
    [{ poll: "1ms" }, "poll"],
    [{ retention: { finished: "a week" } }, "retention.finished"],
    [{ retention: { finished: "5000d" } }, "retention.finished"],
    [{ durability: "none" }, "durability"],
    [{ recovery: { crashes: 0 } }, "recovery.crashes"],
    [{ logger: { info: () => {} } }, "logger"],
    [{ onEvent: 1 }, "onEvent"],
    [{ jobs: [{}] }, "jobs"],
    [{ jobs: [job("a"), job("a")] }, "named a"],
  ];
  for (const [options, named] of cases)
    await assert.rejects(open("sqlite:/nowhere/at/all.db", options), says(ErrorCode.optionInvalid, named));
  for (const url of ["./jobs.db", "mysql://localhost", "sqlite:", undefined as unknown as string])
    await assert.rejects(open(url), says(ErrorCode.optionInvalid));
});

test("options of a kind that can't be are refused where the kind is written", () => {
  const cases: [string, object, string][] = [
    ["a", { timeout: "5" }, "timeout"],
    ["a", { timeout: "1ms" }, "job a are not usable: timeout"],
    ["a", { timeout: "1m", maxRuntime: "1s" }, "maxRuntime of a"],
    ["a", { retry: { attempts: 0 } }, "retry.attempts"],
    ["a", { retry: { backoff: { base: "1m", max: "1s" } } }, "backoff.max of a"],
    ["a", { retry: { backoff: "quadratic" } }, "retry.backoff"],
    ["a", { retries: 3 }, "retries"],
    ["a", { onCrash: "explode" }, "onCrash"],
    ["a", { input: { parse: () => {} } }, "not a schema"],
  ];
  for (const [name, options, named] of cases)
    assert.throws(() => job(name, options), says(ErrorCode.optionInvalid, named));
  assert.ok(new OutliveError(ErrorCode.closed, "a", "b") instanceof Error);
});
