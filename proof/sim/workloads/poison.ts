// One job that kills its process whenever it runs, among all the innocent ones.
import { ORDINARY, type Workload } from "./workload.ts";

export const poison: Workload = {
  name: "poison",
  share: 0.35,
  weight: 3,
  most: 1,
  kinds: { poison: { ...ORDINARY, limits: { errors: 10, timeouts: 10, crashes: 2 }, poison: true } },

  wish: () => ({ kind: "poison", input: null }),

  handlers({ work, process }) {
    return {
      async poison() {
        await work(300);
        process.kill("poison");
        await new Promise(() => {});
      },
    };
  },
};
