// The atomic store of the simulator as the conformance suite wants it: connections to one server, and the server's own ways to damage what it
// keeps, to lose scripts and to start again.
import assert from "node:assert/strict";
import { AtomicServer } from "../../proof/sim/stores/atomic-server.ts";
import { atomicStore } from "../../proof/sim/stores/atomic-store.ts";
import { wrongSums } from "../../proof/sim/stores/blocks.ts";
import { Data } from "../../proof/sim/stores/records.ts";
import type { ConformanceStores, Damage, Restore } from "../../src/testing/conformance/suite.ts";
import { virtualClock } from "../../src/testing/virtual-clock.ts";

export async function atomicStores(): Promise<ConformanceStores> {
  const clock = virtualClock();
  const server = new AtomicServer(clock);
  return {
    open: async () => atomicStore(server),
    clock,
    damage: damageIn(server),
    restore: restoreIn(server),
    cleanup: async () => {
      assert.deepEqual(server.torn, [], "no script threw after its first write");
      within(server, (data) => assert.deepEqual([...data.wrongIndexes(), ...wrongSums(data)], []));
    },
  };
}

/** Behind the back of every connection. */
export function within(server: AtomicServer, body: (data: Data) => void): void {
  server.eval("test", (keys) => {
    body(new Data(keys));
    return "";
  });
}

function damageIn(server: AtomicServer): Damage {
  return async (id, what) =>
    within(server, (data) => {
      const job = data.jobById(id);
      assert.ok(job, `job ${id} is in the store`);
      const damaged = (text: string): string => text.replaceAll(text[0]!, "?");
      if (what === "input") data.putJob({ ...job, input: damaged(job.input) });
      if (what === "result") data.putJob({ ...job, result: damaged(job.result!) });
      if (what === "step")
        data.putSteps(
          job.row,
          data.steps(job.row).map((step) => ({ ...step, result: damaged(step.result!) })),
        );
    });
}

/** A server that came back from a copy is a new run; here nothing of its last scripts is missing. */
function restoreIn(server: AtomicServer): Restore {
  return {
    renameWorker: async (id, to) =>
      within(server, (data) => {
        const worker = data.worker(id);
        assert.ok(worker, `worker ${id} has a row`);
        for (const job of data.held(id)) data.putJob({ ...job, worker: to });
        data.deleteWorker(id);
        data.putWorker({ ...worker, id: to });
      }),
    comeBack: async () => server.loseSuffix(0),
  };
}
