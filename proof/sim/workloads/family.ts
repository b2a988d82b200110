// Parents enqueue children under their own fence: a parent that runs again has no more children than before, and one that
// succeeded has all of them. The children of one parent are alike: only how many came before tells them apart.
import { noRows } from "../oracle/audit-rows.ts";
import { ORDINARY, type Workload } from "./workload.ts";

export const family: Workload = {
  name: "family",
  share: 0.5,
  weight: 4,
  kinds: { child: ORDINARY, parent: ORDINARY },

  wish: (random) => ({ kind: "parent", input: 1 + random.below(3) }),

  handlers({ work, contract }) {
    return {
      child: () => work(100),
      async parent(children: number, run) {
        for (let i = 0; i < children; i++) {
          await work(250);
          await run.enqueue(contract("child"), run.id);
        }
      },
    };
  },

  audit(db) {
    noRows(
      db,
      `SELECT * FROM (
         SELECT j.id, j.state, CAST(j.input AS INTEGER) AS wanted,
           (SELECT count(*) FROM outlive_jobs c JOIN outlive_kinds k ON k.id = c.kind
            WHERE k.name = 'child' AND c.input = json_quote(j.id)) AS children
         FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind WHERE k.name = 'parent')
       WHERE children > wanted OR (state = 2 AND children < wanted)`,
      "parents that have more children than they wanted, or succeeded with fewer",
    );
  },
};
