// Jobs that block the loop of their process, some of them beyond their deadline: the maintenance thread has to end the process.
import { pause } from "../../../src/job/time.ts";
import { ORDINARY, type Workload } from "./workload.ts";

export const blockers: Workload = {
  name: "blockers",
  share: 0.15,
  weight: 1,
  most: 2,
  kinds: { blocker: { ...ORDINARY, timeoutMs: 3_000 } },

  wish: (random) => ({ kind: "blocker", input: random.between(500, 6_000) }),

  handlers({ clock, process }) {
    return {
      async blocker(ms: number) {
        process.block(ms);
        await pause(clock, 1);
      },
    };
  },
};
