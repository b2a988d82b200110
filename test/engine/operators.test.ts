// What people do to jobs and kinds, and what they can see: cancel, retry, pause, list, count, incidents, reports.
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Engine, ErrorCode, job } from "../../src/index.ts";
import { stepped } from "../support/jobs.ts";
import { Place, untilState, untilTrue } from "../support/processes.ts";
import { AT_ONCE, forever, memory, PATIENT, raw, says, untilAborted } from "./engines.ts";
import { AHEAD_BOUND_MS } from "../../src/stores/port.ts";

const sleeper = () => job<null>("sleeper", { grace: "0ms" });

test("cancelling a queued job ends it at once, and it never runs", async (t) => {
  let ran = 0;
  const note = job<null>("note").handle(() => void ran++);
  const engine = await memory(t, [note]);
  const { id: ready } = await engine.enqueue(note, null);
  const { id: delayed } = await engine.enqueue(note, null, { delay: "1h" });
  for (const id of [ready, delayed]) assert.equal(await engine.cancel(id), "cancelled");
  await engine.runUntilIdle();
  assert.equal(ran, 0);
  for (const id of [ready, delayed]) {
    const { state, history, finishedAt } = (await engine.get(id))!;
    assert.equal(state, "cancelled");
    assert.ok(finishedAt !== null);
    assert.deepEqual(
      history.map(({ event, from, to, actor }) => [event, from, to, actor]),
      [["cancel", "queued", "cancelled", "operator"]],
    );
  }
});

test("cancelling a running job aborts its signal, and when the handler then throws, the job is cancelled", async (t) => {
  const { promise, resolve } = Promise.withResolvers<string>();
  const long = job<null>("long").handle(async (_, run) => {
    const reason = await untilAborted(run.signal);
    resolve(reason.why);
    throw reason;
  });
  const engine = await memory(t, [long]);
  const { id } = await engine.enqueue(long, null);
  await engine.start();
  await untilState(engine, id, "running");
  assert.equal(await engine.cancel(id), "running");
  assert.equal(await promise, "cancelled");
  await untilState(engine, id, "cancelled");
  const { counters, lastOutcome } = (await engine.get(id))!;
  assert.deepEqual([counters.errors, lastOutcome], [0, "cancelled"]);
});

test("a handler that has returned wins over the cancel", async (t) => {
  const long = job<null>("long").handle(async (_, run) => {
    await untilAborted(run.signal);
    return "done all the same";
  });
  const engine = await memory(t, [long]);
  const { id } = await engine.enqueue(long, null);
  await engine.start();
  await untilState(engine, id, "running");
  await engine.cancel(id);
  await untilState(engine, id, "succeeded");
  assert.equal((await engine.get(id))?.result, "done all the same");
});

test("a handler that ignores its cancel is given up after its grace, and may write nothing meanwhile", async (t) => {
  const { promise, resolve } = Promise.withResolvers<unknown>();
  const deaf = job<null>("deaf", { grace: "20ms" }).handle(async (_, run) => {
    await untilAborted(run.signal);
    await run.step("after", () => 1).catch(resolve);
    await forever();
  });
  const engine = await memory(t, [deaf]);
  const { id } = await engine.enqueue(deaf, null);
  const worker = await engine.start();
  await untilState(engine, id, "running");
  await engine.cancel(id);
  await untilState(engine, id, "cancelled");
  await untilTrue(
    () => worker.held,
    (held) => held === 0,
    "its slot is free",
  );
  assert.equal(((await promise) as { why: string }).why, "cancelled");
  const { steps, history } = (await engine.get(id))!;
  assert.deepEqual(steps, []);
  assert.equal(history.at(-1)?.reason, "cancelled; its handler did not end within the grace");
});

test("a cancel by one engine reaches a job that runs in another", async (t) => {
  const place = new Place(t);
  const long = job<null>("long").handle(async (_, run) => {
    throw await untilAborted(run.signal);
  });
  const worker = await place.engine({ jobs: [long], heartbeat: {} });
  const operator = await place.engine({ jobs: [long] });
  const { id } = await operator.enqueue(long, null);
  await worker.start();
  await untilState(operator, id, "running");
  await operator.cancel(id);
  await untilState(operator, id, "cancelled");
});

test("a requested cancel also holds if the worker shuts down before the handler has ended", async (t) => {
  const deaf = job<null>("deaf").handle(forever);
  const engine = await memory(t, [deaf]);
  const { id } = await engine.enqueue(deaf, null);
  const worker = await engine.start();
  await untilState(engine, id, "running");
  await engine.cancel(id);
  await worker.stop({ grace: "0ms" });
  assert.equal((await engine.get(id))?.state, "cancelled");
});

test("a requested cancel also holds if the handler fails before it has noticed it", async (t) => {
  const { promise: entered, resolve: enter } = Promise.withResolvers<void>();
  const { promise: told, resolve: tell } = Promise.withResolvers<void>();
  const shaky = job<null>("shaky", { retry: { backoff: { base: "1h" } } });
  shaky.handle(async () => {
    enter();
    await told;
    throw new Error("by itself");
  });
  const engine = await memory(t, [shaky]);
  const { id } = await engine.enqueue(shaky, null);
  await engine.start();
  await entered;
  const cancelled = engine.cancel(id);
  tell();
  assert.equal(await cancelled, "running");
  await untilTrue(
    () => engine.get(id),
    (seen) => seen?.state !== "running",
    "the attempt has ended",
  );
  assert.equal((await engine.get(id))?.state, "cancelled");
});

test("a finished job can't be cancelled, an unfinished one can't be retried, and an unknown one is not found", async (t) => {
  const note = job<null>("note").handle(() => {});
  const engine = await memory(t, [note]);
  const { id: queued } = await engine.enqueue(note, null, { delay: "1h" });
  const { id: done } = await engine.enqueue(note, null);
  await engine.runUntilIdle();
  await assert.rejects(engine.cancel(done), says(ErrorCode.wrongState, done, "is succeeded"));
  await assert.rejects(engine.retry(queued), says(ErrorCode.wrongState, queued, "is queued"));
  await assert.rejects(engine.cancel("none"), says(ErrorCode.notFound, "no job none"));
  await assert.rejects(engine.retry("none"), says(ErrorCode.notFound, "no job none"));
  assert.equal(await engine.get("none"), null);
});

/** One job in each terminal state. A quarantine takes three deaths, which test/crash has; here the row is set. */
async function ended(
  t: Parameters<typeof raw>[0],
  place: Place,
): Promise<{ engine: Engine; ids: Map<string, string> }> {
  let well = false;
  const note = job<string>("note", { retry: { attempts: 1 } });
  note.handle(async (how, run) => {
    await run.step("one", () => 1);
    if (how === "dead" && !well) throw new Error("no");
    return how;
  });
  const engine = await place.engine({ jobs: [note], heartbeat: {} });
  const ids = new Map<string, string>();
  for (const how of ["succeeded", "dead", "cancelled", "quarantined"])
    ids.set(how, (await engine.enqueue(note, how)).id);
  await engine.cancel(ids.get("cancelled")!);
  const worker = await engine.start();
  for (const how of ["succeeded", "dead"]) await untilState(engine, ids.get(how)!, how);
  await untilState(engine, ids.get("quarantined")!, "succeeded");
  await worker.stop();
  well = true;
  raw(t, place.path).exec(
    `UPDATE outlive_jobs SET state = 5, crashes = 4, blamed = 3, result = NULL WHERE id = '${ids.get("quarantined")}'`,
  );
  return { engine, ids };
}

test("only a retry leaves a terminal state, and it is recorded; counters start again, steps and fence continue", async (t) => {
  const { engine, ids } = await ended(t, new Place(t));
  for (const [how, id] of ids) {
    const before = (await engine.get(id))!;
    assert.equal(before.state, how);
    const refusal = says(
      ErrorCode.wrongState,
      `Job ${id} is ${how}; it has ended`,
      "It is deleted after its retention",
      `outlive retry ${id}`,
    );
    await assert.rejects(engine.cancel(id), refusal);
    assert.equal((await engine.get(id))?.state, how);
    assert.equal(await engine.retry(id), "queued");
    const after = (await engine.get(id))!;
    assert.equal(after.state, "queued");
    assert.equal(after.finishedAt, null);
    assert.equal(after.result, null);
    assert.deepEqual(after.counters, { errors: 0, crashes: 0, blamed: 0, timeouts: 0, interruptions: 0, losses: 0 });
    assert.deepEqual(after.steps, before.steps);
    assert.equal(after.attempt, before.attempt);
    const { event, from, to, actor, reason } = after.history.at(-1)!;
    assert.deepEqual(
      [event, from, to, actor, reason],
      ["retry", how, "queued", "operator", `retried by hand from ${how}`],
    );
  }
  assert.deepEqual(await counted(engine), { ready: 4 });
  await engine.start();
  for (const id of ids.values()) await untilState(engine, id, "succeeded");
  assert.equal((await engine.get(ids.get("dead")!))?.result, "dead");
  assert.deepEqual(await counted(engine), { succeeded: 4 });
});

/** The counts of the first kind that are not zero. */
async function counted(engine: Engine): Promise<Record<string, number>> {
  const counts = (await engine.counts())[0]!;
  const names = ["ready", "delayed", "running", "succeeded", "dead", "cancelled", "quarantined"] as const;
  return Object.fromEntries(names.map((name) => [name, counts[name]] as const).filter(([, n]) => n > 0));
}

test("counts says how many jobs of each kind are in each state", async (t) => {
  const { engine, ids } = await ended(t, new Place(t));
  assert.deepEqual(await counted(engine), { succeeded: 1, dead: 1, cancelled: 1, quarantined: 1 });
  await engine.retry(ids.get("succeeded")!);
  assert.deepEqual(await counted(engine), { ready: 1, dead: 1, cancelled: 1, quarantined: 1 });
});

test("a paused kind is not claimed until it is resumed, and running jobs continue", async (t) => {
  const gate = Promise.withResolvers<void>();
  const slow = job<number>("slow").handle(() => gate.promise);
  const quick = job<number>("quick").handle(() => {});
  const engine = await memory(t, [slow, quick], { poll: "1h" });
  const { id: running } = await engine.enqueue(slow, 1);
  await engine.start({ concurrency: 1 });
  await untilState(engine, running, "running");
  await engine.pause(slow);
  const { id: waiting } = await engine.enqueue(slow, 2, { priority: 10 });
  const { id: other } = await engine.enqueue(quick, 3);
  gate.resolve();
  await untilState(engine, running, "succeeded");
  await untilState(engine, other, "succeeded");
  assert.equal((await engine.get(waiting))?.state, "queued");
  assert.deepEqual(
    (await engine.counts()).map(({ kind, paused, ready }) => [kind, paused, ready]),
    [
      ["quick", false, 0],
      ["slow", true, 1],
    ],
  );
  await engine.resume("slow");
  await untilState(engine, waiting, "succeeded");
});

test("a pause outlives the process, and a kind that no program declared can't be paused", async (t) => {
  const place = new Place(t);
  const note = job<null>("note").handle(() => {});
  const first = await place.engine({ jobs: [note] });
  await first.pause("note");
  await first.close();
  const second = await place.engine({ jobs: [note] });
  assert.equal((await second.counts())[0]?.paused, true);
  await assert.rejects(second.pause("nothing"), says(ErrorCode.notFound, '"nothing"'));
  await assert.rejects(second.resume("nothing"), says(ErrorCode.notFound, '"nothing"'));
});

test("list shows the newest first, by pages, and can be narrowed by kind, state and text", async (t) => {
  const a = job<number>("a", { retry: { attempts: 1, backoff: AT_ONCE } });
  a.handle((n) => {
    if (n === 3) throw new Error("a needle in the error");
  });
  const b = job<number>("b");
  const engine = await memory(t, [a, b]);
  const ids: string[] = [];
  for (let n = 0; n < 7; n++) ids.push((await engine.enqueue(a, n)).id);
  const { id: keyed } = await engine.enqueue(b, 1, { dedupeKey: "needle-key" });
  const { id: named } = await engine.enqueue(b, 2, { id: "the-needle-id" });
  await engine.runUntilIdle();
  const newest = [...ids, keyed, named].toReversed();

  const seen: string[] = [];
  let pages = 0;
  for (let after: string | null | undefined; after !== null; pages++) {
    const page = await engine.list({ limit: 4, ...(after === undefined ? {} : { after }) });
    seen.push(...page.jobs.map(({ id }) => id));
    after = page.next;
  }
  assert.deepEqual(seen, newest);
  assert.equal(pages, 3);
  const listed = async (filter: Parameters<Engine["list"]>[0]): Promise<string[]> =>
    (await engine.list(filter)).jobs.map(({ id }) => id);
  assert.deepEqual(await listed({ kind: "b" }), [named, keyed]);
  assert.deepEqual(await listed({ state: "dead" }), [ids[3]]);
  assert.deepEqual(await listed({ state: "queued", kind: "b" }), [named, keyed]);
  assert.deepEqual(await listed({ state: "succeeded", kind: "b" }), []);
  assert.deepEqual(await listed({ text: "needle" }), [named, keyed, ids[3]]);
  assert.deepEqual(await listed({ text: "%" }), [], "a text, not a pattern");
  assert.deepEqual(await listed({ kind: "nobody's" }), []);
  assert.equal((await engine.list({ limit: 9 })).next, null, "a page that holds all has no next");
});

test("a limit or a cursor of a list that can't be is refused", async (t) => {
  const engine = await memory(t, []);
  for (const limit of [0, 1001, 1.5, Number.NaN, "5" as unknown as number])
    await assert.rejects(engine.list({ limit }), says(ErrorCode.optionInvalid, "limit"));
  for (const after of ["", "x", "-1", "1; DROP TABLE outlive_jobs"])
    await assert.rejects(engine.list({ after }), says(ErrorCode.optionInvalid, "cursor"));
});

test("list refuses a state that does not exist", async (t) => {
  const engine = await memory(t, []);
  for (const state of ["done", "constructor"])
    await assert.rejects(engine.list({ state: state as "queued" }), says(ErrorCode.optionInvalid, state));
});

test("get returns everything about a job", async (t) => {
  const note = job<{ n: number }>("note", { retry: { backoff: AT_ONCE } });
  note.handle(async ({ n }, run) => {
    await run.step("one", () => [n]);
    await run.progress(0.5);
    await run.log("hello");
    if (run.attempt === 1) throw new Error("once");
    return { n };
  });
  const engine = await memory(t, [note]);
  const { id } = await engine.enqueue(note, { n: 1 }, { priority: 2, dedupeKey: "k" });
  const worker = await engine.start();
  await untilState(engine, id, "succeeded");
  const { createdAt, startedAt, finishedAt, deadlineAt, epoch, error, history, steps, log, ...rest } =
    (await engine.get(id))!;
  assert.deepEqual(rest, {
    id,
    kind: "note",
    state: "succeeded",
    priority: 2,
    dedupeKey: "k",
    runAt: null,
    worker: worker.id,
    attempt: 2,
    counters: { errors: 1, crashes: 0, blamed: 0, timeouts: 0, interruptions: 0, losses: 0 },
    lastOutcome: "succeeded",
    cancelRequested: false,
    parent: null,
    waitsAt: null,
    keys: [],
    heldBy: null,
    together: 0,
    waitsForResolution: false,
    input: { n: 1 },
    result: { n: 1 },
    progress: 0.5,
    corrupt: [],
  });
  assert.ok(createdAt <= startedAt! && startedAt! <= finishedAt!);
  // A worker that claims ahead may hold a job for a while before it starts it.
  const bounds = [900_000, 900_000 + AHEAD_BOUND_MS];
  assert.ok(bounds.includes(deadlineAt! - startedAt!), "fifteen minutes, unless the kind says otherwise");
  assert.ok(epoch > 0);
  assert.equal(error?.message, "once");
  assert.deepEqual([history[0]?.event, history[0]?.actor, history[0]?.epoch], ["fail", `worker/${worker.id}`, epoch]);
  assert.deepEqual(
    steps.map(({ name, result, attempt }) => [name, result, attempt]),
    [["one", [1], 1]],
  );
  assert.deepEqual(
    log.map(({ attempt, message }) => [attempt, message]),
    [
      [1, "hello"],
      [2, "hello"],
    ],
  );
});

test("FR-055 workers lists the running workers, and with all also those that have stopped", async (t) => {
  const place = new Place(t);
  const note = sleeper().handle(forever);
  const engine = await place.engine({ jobs: [note], heartbeat: PATIENT });
  assert.deepEqual(await engine.workers(), []);
  const worker = await engine.start({ concurrency: 7 });
  const { id } = await engine.enqueue(note, null);
  await untilState(engine, id, "running");
  const [row] = await engine.workers();
  assert.deepEqual(
    [row?.id, row?.state, row?.pid, row?.concurrency, row?.kinds, row?.heldCount, row?.leaseMs],
    [worker.id, "live", process.pid, 7, ["sleeper"], 1, 60_000],
  );
  await untilTrue(
    () => engine.workers(),
    ([now]) => now!.beats > row!.beats + 1,
    "its heart beats",
  );
  await worker.stop({ grace: "0ms" });
  assert.deepEqual(await engine.workers(), []);
  assert.deepEqual(
    (await engine.workers({ which: "all" })).map(({ id: who, state }) => [who, state]),
    [[worker.id, "stopped"]],
  );
});

test("health says how the store, the kinds and the worker of this process are", async (t) => {
  const place = new Place(t);
  const note = sleeper().handle(() => {});
  const engine = await place.engine({ jobs: [note], heartbeat: PATIENT });
  const before = await engine.health();
  assert.equal(before.ok, true);
  assert.equal(before.worker, null);
  assert.deepEqual([before.store["path"], before.store["journalMode"]], [place.path, "wal"]);
  assert.ok((before.store["bytes"] as number) > 0);
  const worker = await engine.start();
  const { worker: own, workers, kinds } = await engine.health();
  assert.equal(own?.id, worker.id);
  assert.equal(own.held, 0);
  assert.ok(own.heartbeatAgeMs >= 0 && own.heartbeatAgeMs < 60_000);
  assert.deepEqual([workers.length, kinds[0]?.kind], [1, "sleeper"]);
});

test("at first there are no incidents and no report, and a recovery that finds nothing returns null", async (t) => {
  const engine = await memory(t, []);
  assert.deepEqual(await engine.incidents(), []);
  assert.equal(await engine.report(), null);
  assert.equal(await engine.report("none"), null);
  assert.equal(await engine.operator.recover(), null);
  assert.equal(await engine.report(), null);
});

test("FR-030 a recovery that finds nothing does not replace the last report", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(stepped, { stopAt: "between" });
  const victim = place.child({ heartbeat: {} });
  await victim.untilFact("waiting", { point: "between" });
  victim.kill();
  await victim.exited;
  const report = await engine.operator.recover();
  assert.deepEqual(
    report?.recoveredJobs.map(({ jobId, decision, crashes, lastStep, success }) => [
      jobId,
      decision,
      crashes,
      lastStep,
      success,
    ]),
    [[id, "retry", 1, "first", true]],
  );
  assert.equal(await engine.operator.recover(), null);
  const again = await place.engine();
  assert.deepEqual(await again.report(), report);
  const [incident, ...others] = await again.incidents();
  assert.deepEqual(others, []);
  assert.deepEqual(await again.report(incident!.id), report);
  assert.match(report.text, /^=== Queue Recovery Report ===\n/);
});

test("a recovery that is aborted takes nothing up", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(stepped, { stopAt: "between" });
  const victim = place.child({ heartbeat: {} });
  await victim.untilFact("waiting", { point: "between" });
  victim.kill();
  await victim.exited;
  assert.equal(await engine.operator.recover({ signal: AbortSignal.abort() }), null);
  assert.equal((await engine.get(id))?.state, "running");
  assert.equal((await engine.operator.recover())?.recoveredJobs.length, 1);
});
