// Jobs that sometimes never end and ignore their signal: their slot comes back at the deadline.
import { ORDINARY, type Workload } from "./workload.ts";

export const deaf: Workload = {
  name: "deaf",
  share: 0.1,
  weight: 2,
  kinds: { deaf: { ...ORDINARY, timeoutMs: 2_000, limits: { errors: 10, timeouts: 3, crashes: 3 } } },

  wish: () => ({ kind: "deaf", input: null }),

  handlers({ work, random }) {
    return {
      async deaf() {
        await work(300);
        if (random.chance(0.4)) await new Promise(() => {});
      },
    };
  },
};
