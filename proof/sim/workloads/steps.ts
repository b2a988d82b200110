// Chains of steps: whatever a step gave once, it gives forever, through failures, deaths and takeovers. What a chain returns is
// what its steps gave.
import { noRows } from "../oracle/audit-rows.ts";
import { ORDINARY, type Workload } from "./workload.ts";

export const steps: Workload = {
  name: "steps",
  share: 0.75,
  weight: 5,
  kinds: { chain: ORDINARY },

  wish: (random) => ({ kind: "chain", input: 1 + random.below(4) }),

  handlers({ work, random, stepCame }) {
    return {
      async chain(length: number, run) {
        const results: string[] = [];
        for (let i = 0; i < length; i++) {
          const kept = await run.step(`s${i}`, async () => {
            await work(300);
            return random.hex(4);
          });
          stepCame(run, `s${i}`, kept);
          results.push(kept);
          if (random.chance(0.5)) await run.heartbeat();
          if (random.chance(0.5)) await run.progress(i);
          if (random.chance(0.6)) await run.log(`did ${i}`);
          if (random.chance(0.1)) throw new Error("between two steps");
        }
        return results.join(" ");
      },
    };
  },

  audit(db) {
    noRows(
      db,
      `SELECT * FROM (
         SELECT j.id, j.result, CAST(j.input AS INTEGER) AS wanted, count(s.ord) AS steps,
           json_quote(group_concat(json_extract(s.result, '$'), ' ' ORDER BY s.name)) AS gave
         FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind LEFT JOIN outlive_steps s ON s.job = j.seq
         WHERE k.name = 'chain' AND j.state = 2 GROUP BY j.id)
       WHERE result IS NOT gave OR steps <> wanted`,
      "chains that succeeded with another result than their steps gave",
    );
  },
};
