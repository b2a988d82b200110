// C5: a handler that does not end kept its slot after its worker's lease was lost, and the worker ran nothing any more.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { DatabaseSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { type Engine, job } from "../../src/index.ts";
import { Child, freezeOutsideOfAWrite, Place } from "../support/processes.ts";

const options = { timeout: "5s", grace: "200ms" } as const;
const hangs = job<null>("hangs", options);
const hangsWithoutTimeout = job<null>("hangs-without-timeout", { ...options, timeout: "none" });
const quick = job<null>("quick");

/** How long after the lease was lost the slot may take to come back: far longer than timeout and grace. A limit, not a wait. */
const LIMIT_MS = 20_000;
const LEASE_MS = 1_000;

test("C5: a handler that hangs after a lost lease is given up at its deadline and grace, and its slot runs the next job", async (t) => {
  const { engine, child, id, next } = await frozenPastItsLease(t, hangs);
  assert.equal(await stateWithin(engine, next), "succeeded", "the job behind it runs");
  const given = await engine.get(id);
  assert.deepEqual([given?.state, given?.lastOutcome, given?.counters.timeouts], ["queued", "timed-out", 1]);
  assert.equal(child.facts.filter(({ fact }) => fact === "started").length, 1);
});

test("C5: a handler without a timeout that hangs after a lost lease is given up after the grace, and its slot runs the next job", async (t) => {
  const { engine, id, next } = await frozenPastItsLease(t, hangsWithoutTimeout);
  assert.equal(await stateWithin(engine, next), "succeeded", "the job behind it runs");
  // It was released at no cost, and its second attempt ends.
  assert.equal(await stateWithin(engine, id), "succeeded");
  const { counters, history } = (await engine.get(id))!;
  assert.deepEqual([counters.timeouts, counters.errors, counters.crashes, counters.interruptions], [0, 0, 0, 1]);
  assert.match(history.find(({ event }) => event === "release")?.reason ?? "", /lost the lease/);
});

/** A worker with one slot, whose handler hangs, was stopped for longer than its lease and has gone on. No other worker was there. */
async function frozenPastItsLease(t: TestContext, kind: typeof hangs) {
  const place = new Place(t);
  const engine = await place.engine({ jobs: [hangs, hangsWithoutTimeout, quick] });
  const { id } = await engine.enqueue(kind, null);
  const process = fork(fileURLToPath(new URL("./c05-process.ts", import.meta.url)), [place.url], {
    execArgv: ["--disable-warning=ExperimentalWarning"],
    stdio: ["ignore", "inherit", "pipe", "ipc"],
  });
  const child = new Child(process);
  t.after(async () => {
    child.kill("SIGKILL");
    await child.exited;
  });
  await child.untilFact("started", { id });
  await child.untilEvent("worker.started");
  const { id: next } = await engine.enqueue(quick, null);
  await freezeOutsideOfAWrite(engine, child.pid);
  await new Promise((resolve) => setTimeout(resolve, 2 * LEASE_MS));
  // Until its handler has heard of it no heartbeat is written: one that came first would show that no other worker has taken the lease.
  const lock = new DatabaseSync(place.path);
  lock.exec("BEGIN IMMEDIATE");
  child.kill("SIGCONT");
  await child.untilFact("aborted", { id, why: "lease-lost" });
  lock.exec("ROLLBACK");
  lock.close();
  return { engine, child, id, next };
}

async function stateWithin(engine: Engine, id: string): Promise<string | undefined> {
  const until = performance.now() + LIMIT_MS;
  for (;;) {
    const state = (await engine.get(id))?.state;
    if (state === "succeeded" || performance.now() > until) return state;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
