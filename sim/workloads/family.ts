// Parents enqueue children under their own fence: a parent that runs again has no more children than before.
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
          await run.enqueue(contract("child"), null);
        }
      },
    };
  },
};
