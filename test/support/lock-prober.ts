// Probes the lock of a worker without pause, from the moment at which it is named, until it is not held any more, and says what it saw then.
import { lockFileLiveness } from "../../src/stores/sqlite/lock.ts";
import type { WorkerRow } from "../../src/stores/liveness.ts";

const liveness = lockFileLiveness(process.argv[2]!, "boot");

process.on("message", (row: WorkerRow) => {
  void (async () => {
    process.send!("held");
    for (;;) {
      const probe = await liveness.probe(row);
      if (probe !== "held") return process.send!(probe);
    }
  })();
});
process.send!("ready");
