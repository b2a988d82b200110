// The store applied what was asked, but its answer never came. Nothing may be lost or done twice, and a claim that no worker knows
// of goes back at no cost to the job. The store is wrapped; the engine has no hook for this.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { Engine } from "../../src/engine/engine.ts";
import { engineSettings } from "../../src/engine/options.ts";
import { type EngineEvent, job } from "../../src/index.ts";
import { toStoredError } from "../../src/job/errors.ts";
import { EventBus } from "../../src/job/events.ts";
import { systemClock as clock, systemRandom as random } from "../../src/platform/clock.ts";
import { checkProcess, processIdentity } from "../../src/platform/identity.ts";
import type { TurnAnswer, Settlement, Store } from "../../src/stores/port.ts";
import { openSqlite } from "../../src/stores/sqlite/open.ts";
import { SHORT, untilState, untilTrue } from "../support/processes.ts";

type Loses = (settlements: readonly Settlement[], answer: TurnAnswer) => boolean;

async function engineThatLoses(
  t: TestContext,
  jobs: readonly object[],
  loses: Loses,
  losesRegistering = false,
): Promise<{ engine: Engine; events: EngineEvent[] }> {
  const folder = mkdtempSync(join(tmpdir(), "outlive-test-"));
  const bus = new EventBus(toStoredError);
  const events: EngineEvent[] = [];
  bus.onAny((event) => events.push(event));
  const identity = processIdentity();
  const backend = await openSqlite(
    { clock, random, events: bus, bootId: identity.bootId },
    { path: join(folder, "jobs.db") },
  );
  const store: Store = new Proxy(backend.store, {
    get(target, name) {
      if (name === "turn") {
        return async (...asked: Parameters<Store["turn"]>) => {
          const answer = await target.turn(...asked);
          if (loses(asked[1], answer)) throw new Error("the answer was lost");
          return answer;
        };
      }
      if (name === "register" && losesRegistering) {
        return async (...asked: Parameters<Store["register"]>) => {
          await target.register(...asked);
          throw new Error("the answer was lost");
        };
      }
      const value = Reflect.get(target, name, target) as unknown;
      return typeof value === "function" ? (value.bind(target) as unknown) : value;
    },
  });
  const settings = engineSettings({ heartbeat: SHORT });
  const contracts = new Map((jobs as { name: string }[]).map((contract) => [contract.name, contract as never]));
  const wrapped = { ...backend, store: store as typeof backend.store };
  const engine = new Engine({
    backend: wrapped,
    settings,
    contracts,
    clock,
    random,
    bus,
    identity,
    processState: checkProcess,
  });
  await backend.store.declare((jobs as { settings: never }[]).map((contract) => contract.settings));
  t.after(async () => {
    await engine.close();
    rmSync(folder, { recursive: true, force: true });
  });
  return { engine, events };
}

test("a claim whose answer was lost is released at no cost and runs", async (t) => {
  let runs = 0;
  const task = job<{ n: number }>("task").handle(() => void runs++);
  let lost = 0;
  const { engine, events } = await engineThatLoses(t, [task], (_, answer) => answer.claimed.length > 0 && lost++ === 0);
  const { id } = await engine.enqueue(task, { n: 1 });
  await engine.start({ concurrency: 2 });
  await untilState(engine, id, "succeeded");
  assert.equal(lost >= 1, true);
  assert.equal(runs, 1);
  const done = await engine.get(id);
  assert.deepEqual(done?.counters, { errors: 0, crashes: 0, blamed: 0, timeouts: 0, interruptions: 1, losses: 0 });
  assert.equal(done?.attempt, 2);
  assert.ok(events.some(({ name }) => name === "job.released"));
});

for (const [what, handler, end] of [
  ["success", () => {}, { state: "succeeded", errors: 0 }],
  ["failure", () => Promise.reject(new Error("no")), { state: "dead", errors: 1 }],
] as const) {
  test(`a settlement whose answer was lost is sent again and changes nothing: one ${what} is counted once`, async (t) => {
    let runs = 0;
    const task = job<{ n: number }>("task", { retry: { attempts: 1 } }).handle(() => {
      runs++;
      return handler();
    });
    let lost = 0;
    const { engine, events } = await engineThatLoses(t, [task], (settlements) => settlements.length > 0 && lost++ < 2);
    const { id } = await engine.enqueue(task, { n: 1 });
    const worker = await engine.start({ concurrency: 2 });
    await untilState(engine, id, end.state);
    await untilTrue(
      () => worker.held,
      (held) => held === 0,
      "the worker knows that it is settled",
    );
    assert.equal(lost, 3, "lost twice, heard at the third");
    const done = await engine.get(id);
    assert.equal(done?.counters.errors, end.errors);
    assert.equal(done?.attempt, 1);
    assert.equal(runs, 1);
    assert.ok(!events.some(({ name }) => name === "write.rejected"), "a repetition is not a stale write");
  });
}

test("a worker that never heard that it was registered leaves no row behind that would look like a death", async (t) => {
  const task = job<{ n: number }>("task").handle(() => {});
  const { engine } = await engineThatLoses(t, [task], () => false, true);
  await assert.rejects(engine.start({ concurrency: 2 }), /the answer was lost/);
  assert.deepEqual(
    (await engine.workers({ which: "all" })).map(({ state }) => state),
    ["stopped"],
  );
  assert.equal(await engine.operator.recover(), null);
  assert.deepEqual(await engine.incidents(), []);
});
