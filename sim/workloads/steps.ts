// Chains of steps: whatever a step gave once, it gives for ever, through failures, deaths and takeovers.
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
          stepCame(run.id, `s${i}`, kept);
          results.push(kept);
          if (random.chance(0.2)) await run.heartbeat();
          if (random.chance(0.2)) await run.progress(i);
          if (random.chance(0.1)) await run.log(`did ${i}`);
          if (random.chance(0.1)) throw new Error("between two steps");
        }
        return results.join(" ");
      },
    };
  },
};
