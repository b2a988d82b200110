// Jobs that end as soon as they begin, with nothing to write but that: many of them end in one turn. One that was taken from its worker runs for a while. No seed
// draws them: only histories about neighbours have them.
import { ORDINARY, type Workload } from "./workload.ts";

export const ticks: Workload = {
  name: "ticks",
  share: 0,
  weight: 1,
  kinds: { tick: ORDINARY },

  wish: () => ({ kind: "tick", input: null }),

  handlers: ({ work }) => ({
    async tick(_, run) {
      if (run.attempt > 1) await work(3_000);
    },
  }),
};
