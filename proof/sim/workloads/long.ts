// A job that ends early only if its signal is aborted: by a cancel, a shutdown, a lost lease.
import { pause } from "../../../src/job/time.ts";
import { ORDINARY, type Workload } from "./workload.ts";

export const long: Workload = {
  name: "long",
  share: 0.2,
  weight: 1,
  most: 2,
  kinds: { long: { ...ORDINARY, timeoutMs: 60_000 } },

  wish: () => ({ kind: "long", input: null }),

  handlers({ clock }) {
    return {
      async long(_, run) {
        await pause(clock, 12_000, run.signal);
        run.signal.throwIfAborted();
      },
    };
  },
};
