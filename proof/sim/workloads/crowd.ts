// Innocent jobs that run for longer than any search for a culprit takes. No seed draws them: only the histories about isolation have them.
import { pause } from "../../../src/job/time.ts";
import { ORDINARY, type Workload } from "./workload.ts";

export const crowd: Workload = {
  name: "crowd",
  share: 0,
  weight: 1,
  kinds: { crowd: { ...ORDINARY, timeoutMs: 600_000 } },

  wish: () => ({ kind: "crowd", input: null }),

  handlers({ clock, random }) {
    return {
      async crowd(_, run) {
        await pause(clock, random.between(14_000, 17_000), run.signal);
        run.signal.throwIfAborted();
      },
    };
  },
};
