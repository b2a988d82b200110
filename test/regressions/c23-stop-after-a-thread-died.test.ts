// C23: `stop()` waited for the end of a maintenance thread that had ended already, or for an older one while its successor booted.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { systemClock } from "../../src/platform/clock.ts";
import { startMaintenanceThread } from "../../src/recovery/maintenance-thread.ts";

/** What each start of the stand-in thread does: it works until a heartbeat is asked for, ends while it boots, or boots without end. */
type Life = "works" | "ends" | "boots";

interface Stage {
  readonly maintenance: Awaited<ReturnType<typeof startMaintenanceThread>>;
  /** How often the thread was started, was at work, and has died. */
  readonly starts: () => number;
  readonly ups: () => number;
  readonly downs: () => number;
}

async function stage(t: TestContext, lives: readonly Life[]): Promise<Stage> {
  const folder = mkdtempSync(join(tmpdir(), "outlive-thread-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, "stand-in.mjs");
  writeFileSync(
    file,
    `import { parentPort, workerData } from "node:worker_threads";
     const { starts, lives } = workerData.own;
     const life = lives[Atomics.add(new Int32Array(starts), 0, 1)];
     if (life === "ends") process.exit();
     // In no case does it outlive its test.
     setTimeout(() => process.exit(), 20_000);
     if (life === "works") {
       parentPort.on("message", () => process.exit());
       parentPort.postMessage({ type: "ready" });
     }`,
  );
  const starts = new SharedArrayBuffer(4);
  let ups = 0;
  let downs = 0;
  const maintenance = await startMaintenanceThread(
    {
      clock: systemClock,
      events: { emit: () => {}, has: () => false } as never,
      file: pathToFileURL(file),
      own: { starts, lives },
      up: () => void ups++,
      down: () => void downs++,
    },
    { worker: "w" } as never,
    {} as never,
  );
  return { maintenance, starts: () => new Int32Array(starts)[0]!, ups: () => ups, downs: () => downs };
}

async function until(is: () => boolean, what: string): Promise<void> {
  for (const began = performance.now(); !is(); await pause(5))
    assert.ok(performance.now() - began < 15_000, `it never came true that ${what}`);
}

async function assertStops({ maintenance }: Stage): Promise<void> {
  const limit = pause(6_000, "it still waits after 6 s", { ref: false });
  assert.equal(await Promise.race([Promise.resolve(maintenance.stop()).then(() => "stopped"), limit]), "stopped");
}

test("C23: stop returns although the maintenance thread has just died", async (t) => {
  const thread = await stage(t, ["works"]);
  thread.maintenance.beat();
  await until(() => thread.downs() === 1, "the thread has died");
  await assertStops(thread);
  assert.equal(thread.starts(), 1, "no other was started");
});

test("C23: stop ends a maintenance thread that is being started again", async (t) => {
  const thread = await stage(t, ["works", "boots"]);
  thread.maintenance.beat();
  await until(() => thread.starts() === 2, "the second thread boots");
  await assertStops(thread);
});

test("C23: a maintenance thread that ends while it boots is started again", async (t) => {
  const thread = await stage(t, ["works", "ends", "works"]);
  thread.maintenance.beat();
  await until(() => thread.ups() === 2, "the third thread is at work");
  await assertStops(thread);
});
