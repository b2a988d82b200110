// Jobs that take longer than they may, are deaf to their signal, and still write when they come back.
import { pause } from "../../../src/job/time.ts";
import { ORDINARY, type Workload } from "./workload.ts";

export const deadlines: Workload = {
  name: "deadlines",
  share: 0.4,
  weight: 2,
  kinds: { tardy: { ...ORDINARY, timeoutMs: 800, limits: { errors: 10, timeouts: 2, crashes: 3 } } },

  wish: () => ({ kind: "tardy", input: null }),

  handlers({ clock, random }) {
    return {
      async tardy(_, run) {
        const write = random.pick(["progress", "log", "heartbeat"]);
        await pause(clock, random.between(100, 2_500));
        if (write === "progress") await run.progress("late");
        else if (write === "log") await run.log("late");
        else await run.heartbeat();
      },
    };
  },
};
