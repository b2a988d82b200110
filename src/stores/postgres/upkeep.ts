// What an open and an operator ask of the server: the epoch, signs of a restore, advice and checks. It has no files for us to look after.
import type { Upkeep } from "../port.ts";
import { advice, findings } from "./advice.ts";
import type { Connection } from "./connection.ts";
import { noticeRestore } from "./restore-mark.ts";
import type { Workers } from "./workers.ts";

export function upkeep(connection: Connection, workers: Workers): Upkeep {
  return {
    raiseEpoch: () => workers.raiseEpoch(connection),
    noticeRestore: async () => ((await noticeRestore(connection)) ? "its tables were restored from a dump" : null),
    async advice() {
      const { pooled } = await connection.greet();
      return advice(connection, pooled);
    },
    integrity: () => findings(connection),
    // Nothing is repaired here: what is damaged on a server is for its backups, and rows that contradict each other are for people.
    repair: () => findings(connection),
  };
}
