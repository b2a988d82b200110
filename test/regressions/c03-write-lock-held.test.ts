// C3: a store that no process can write to makes no worker silent.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { test, type TestContext } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { slow } from "../support/jobs.ts";
import { Child, Place, untilTrue } from "../support/processes.ts";

const HEARTBEAT = { interval: "200ms", lease: "1500ms", probe: "50ms", sweep: "1s" } as const;
/** Several leases. */
const HELD_MS = 5_000;

async function holdWriteLock(t: TestContext, path: string): Promise<() => Promise<unknown>> {
  const program = fileURLToPath(new URL("./write-lock-holder.ts", import.meta.url));
  const holder = new Child(
    fork(program, [path], {
      execArgv: ["--disable-warning=ExperimentalWarning"],
      stdio: ["ignore", "inherit", "pipe", "ipc"],
    }),
  );
  t.after(() => holder.kill("SIGKILL"));
  await holder.untilFact("held");
  return () => {
    holder.process.send({});
    return holder.exited;
  };
}

test("C3: a write lock that another process holds for longer than the lease makes no worker dead and blames no job", async (t) => {
  const place = new Place(t);
  const engine = await place.engine({ heartbeat: HEARTBEAT });
  const workers = [1, 2, 3].map(() => place.child({ heartbeat: HEARTBEAT, concurrency: 1 }));
  for (const worker of workers) await worker.untilFact("working");
  const ids: string[] = [];
  for (const _ of workers) ids.push((await engine.enqueue(slow, { ms: 600_000 })).id);
  await Promise.all(workers.map((worker) => worker.untilFact("started")));
  const before = new Map((await engine.workers()).map(({ id, beats }) => [id, beats]));
  const pids = workers.map(({ pid }) => pid);
  const release = await holdWriteLock(t, place.path);
  await pause(HELD_MS);
  await release();
  // Three of their heartbeats later every watcher has had the time to be wrong.
  await untilTrue(
    () => engine.workers(),
    (rows) => pids.every((pid) => rows.some((row) => row.pid === pid && row.beats >= (before.get(row.id) ?? 0) + 3)),
    "every process beats again",
  );
  assert.deepEqual(await engine.incidents(), []);
  for (const id of ids) {
    const { crashes, blamed } = (await engine.get(id))!.counters;
    assert.deepEqual([crashes, blamed], [0, 0]);
  }
});
