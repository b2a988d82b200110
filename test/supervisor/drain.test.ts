// Ends that are not deaths: signals to the supervisor, to a worker process, and the death of the supervisor itself.
import assert from "node:assert/strict";
import { test } from "node:test";
import { slow } from "../support/jobs.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { Fleet, untilGone } from "./fleet.ts";

const NO_COST = { errors: 0, crashes: 0, blamed: 0, timeouts: 0, interruptions: 1, losses: 0 };

for (const signal of ["SIGTERM", "SIGINT"] as const) {
  test(`${signal} drains: what can finish does, the rest is released at no cost, and all end with 0`, async (t) => {
    const fleet = new Fleet(t);
    const engine = await fleet.place.engine();
    const { id: long } = await engine.enqueue(slow, { ms: 60_000 });
    const supervised = fleet.work({ args: ["--processes", "2", "--grace", "4s"] });
    const pids = await supervised.working(2);
    await untilState(engine, long, "running");
    const { id: short } = await engine.enqueue(slow, { ms: 1_500 });
    await untilState(engine, short, "running");
    supervised.kill(signal);
    assert.deepEqual(await supervised.exited, { code: 0, signal: null });
    await Promise.all(pids.map(untilGone));
    assert.equal((await engine.get(short))?.state, "succeeded");
    const job = await engine.get(long);
    assert.equal(job?.state, "queued");
    assert.deepEqual(job?.counters, NO_COST);
    assert.deepEqual(await engine.incidents(), []);
    assert.deepEqual(
      (await engine.workers({ which: "all" })).map(({ state }) => state),
      ["stopped", "stopped"],
    );
  });
}

const ENDED = "killed by SIGKILL from its supervisor: it was asked to end at once";

test("a second signal ends at once, and what was killed is recovered on the way out", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const supervised = fleet.work({ args: ["--grace", "60s"] });
  const [pid] = await supervised.working();
  await untilState(engine, id, "running");
  // One that comes within 500 ms of the first is the same: repeated until it is a second one.
  await untilTrue(
    () => supervised.kill("SIGTERM"),
    () => supervised.lines.some(({ message }) => message === "SIGTERM again: the workers are ended at once"),
    "the second signal is heard",
  );
  assert.equal(supervised.lines.filter(({ message }) => message.startsWith("SIGTERM: 1 worker drains")).length, 1);
  assert.deepEqual(await supervised.exited, { code: 143, signal: null });
  await untilGone(pid!);
  // On a disk that takes seconds it leaves without: then the next one does it.
  if ((await engine.report()) === null) await engine.operator.recover();
  assert.equal((await engine.get(id))?.state, "queued");
  const [dead] = (await engine.report())!.deadWorkers;
  assert.ok((dead?.evidence ?? ENDED).startsWith(ENDED), dead?.evidence ?? "");
});

test("two signals at the same moment, as a process group gets them, are one: running jobs finish, and all end with 0", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const { id } = await engine.enqueue(slow, { ms: 2_000 });
  const supervised = fleet.work({ args: ["--grace", "60s"] });
  const [pid] = await supervised.working();
  await untilState(engine, id, "running");
  // Two names: the kernel would deliver two of the same name as one.
  supervised.kill("SIGTERM");
  supervised.kill("SIGINT");
  assert.deepEqual(await supervised.exited, { code: 0, signal: null });
  await untilGone(pid!);
  assert.equal((await engine.get(id))?.state, "succeeded");
  assert.deepEqual(await engine.incidents(), []);
});

test("worker processes whose supervisor is killed notice it, drain and end", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const supervised = fleet.work({ args: ["--processes", "2", "--grace", "500ms"] });
  const pids = await supervised.working(2);
  await untilState(engine, id, "running");
  supervised.kill("SIGKILL");
  await Promise.all(pids.map(untilGone));
  const job = await engine.get(id);
  assert.equal(job?.state, "queued");
  assert.deepEqual(job?.counters, NO_COST);
  assert.deepEqual(await engine.incidents(), []);
});

test("a worker process that gets SIGTERM drains and another takes its place", async (t) => {
  const fleet = new Fleet(t);
  const engine = await fleet.place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const supervised = fleet.work({ args: ["--grace", "500ms"] });
  const [pid] = await supervised.working();
  await untilState(engine, id, "running");
  process.kill(pid!, "SIGTERM");
  await supervised.working(2);
  await supervised.said(new RegExp(`^worker 1 \\(pid ${pid}\\) has drained and stopped$`));
  const job = await untilTrue(
    () => engine.get(id),
    (found) => found?.state === "running" && found.attempt === 2,
    "it runs again",
  );
  assert.deepEqual(job?.counters, NO_COST);
  assert.deepEqual(await engine.incidents(), []);
});
