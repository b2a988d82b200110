// Jobs that fail and are tried again with a delay, or never again; few dedupe keys, so that many of them are the same job.
import { TerminalError } from "../../../src/job/errors.ts";
import { ORDINARY, type Workload } from "./workload.ts";

export const failures: Workload = {
  name: "failures",
  share: 0.55,
  weight: 3,
  kinds: { flaky: { ...ORDINARY, limits: { errors: 3, timeouts: 10, crashes: 3 } } },

  wish: (random) => ({ kind: "flaky", input: null, dedupeKey: `key-${random.below(3)}` }),

  handlers({ work, random }) {
    return {
      async flaky() {
        await work(200);
        if (random.chance(0.1)) throw new TerminalError("never");
        if (random.chance(0.5)) throw new Error("not this time");
      },
    };
  },
};
