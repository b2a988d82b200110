// Whether a fault that ends no process makes the engine count a living worker as dead.
import { standsStill } from "../../../src/torture/audit.ts";
import type { FaultContext } from "../processes/fault-schedule.ts";
import { allIncidents } from "../processes/timing.ts";

/**
 * Runs `fault` and then reports each worker that was counted as dead meanwhile although its process runs. By the ids of incidents and not
 * by their instants: the fault may have moved the clock that wrote them.
 */
export async function expectNoDeath(context: FaultContext, fault: () => Promise<void>): Promise<void> {
  const { engine } = context;
  const before = new Set((await allIncidents(engine)).map(({ id }) => id));
  await fault();
  const workers = new Map((await engine.workers({ which: "all" })).map((row) => [row.id, row]));
  for (const { id, worker, how } of await allIncidents(engine)) {
    const pid = workers.get(worker)?.pid;
    if (before.has(id) || context.wasHit(worker) || pid === undefined || standsStill(pid)) continue;
    context.violation(`worker ${worker} was counted as dead (${how}, incident ${id}), and its process ${pid} runs`);
  }
}
