// Jobs that take longer than a worker may stop claiming for a suspect: while one of them runs, the worker does not become idle in time.
import { pause } from "../../../src/job/time.ts";
import { ORDINARY, type Workload } from "./workload.ts";

export const naps: Workload = {
  name: "naps",
  share: 0.05,
  weight: 3,
  most: 4,
  kinds: { nap: { ...ORDINARY, timeoutMs: 60_000 } },

  wish: () => ({ kind: "nap", input: null }),

  handlers({ clock, random }) {
    return {
      async nap(_, run) {
        await pause(clock, random.between(8_000, 14_000), run.signal);
        run.signal.throwIfAborted();
      },
    };
  },
};
