// Who may be counted as dead while a fault ends no process: only whom the rig killed or froze, or who ended.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Engine, IncidentSummary, WorkerRow } from "../../src/index.ts";
import type { FaultContext } from "../../proof/torture/processes/fault-schedule.ts";
import { expectNoDeath } from "../../proof/torture/faults/living-workers.ts";

/** No process has this number. */
const NOBODY = 2 ** 30;

/** What is reported when the incident of `worker`, whose process has this number, appears during the fault, or was there before. */
async function violationsOf(pid: number, { hit = false, isOld = false } = {}): Promise<string[]> {
  const said: string[] = [];
  const incidents: IncidentSummary[] = [];
  const note = (): void => void incidents.push({ id: "i1", worker: "w1", how: "silent" } as IncidentSummary);
  if (isOld) note();
  const engine = { incidents: async () => [...incidents], workers: async () => [{ id: "w1", pid }] as WorkerRow[] };
  const context = {
    engine: engine as unknown as Engine,
    wasHit: () => hit,
    violation: (sentence: string) => void said.push(sentence),
  } as unknown as FaultContext;
  await expectNoDeath(context, async () => {
    if (!isOld) note();
  });
  return said;
}

test("a worker that is counted as dead while its process runs is a violation", async () => {
  assert.deepEqual(await violationsOf(process.pid), [
    `worker w1 was counted as dead (silent, incident i1), and its process ${process.pid} runs`,
  ]);
});

test("a worker whose process has ended, that the rig hit, or that was counted before the fault does not count", async () => {
  assert.deepEqual(await violationsOf(NOBODY), []);
  assert.deepEqual(await violationsOf(process.pid, { hit: true }), []);
  assert.deepEqual(await violationsOf(process.pid, { isOld: true }), []);
});
