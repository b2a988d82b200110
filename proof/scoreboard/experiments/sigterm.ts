// SIGTERM to a worker in the middle of a job of 50 s that does not look at any signal, with another worker idle next to it, at default
// settings and with the shutdown that the contender's documentation shows.
import { monoMs } from "../../bench/program.ts";
import type { Found } from "../adapter.ts";
import { type Experiment, pause } from "../experiment.ts";
import { startOf } from "../processes.ts";

export const sigterm: Experiment = {
  name: "sigterm",
  together: true,
  async run(stage, contender, quick) {
    const jobMs = quick ? 10_000 : 50_000;
    const watchedMs = jobMs + 20_000;
    const place = await stage.place(contender);
    const leaving = await stage.worker(contender, place, "default");
    const observer = await stage.start(contender, place, "default");
    const first = startOf([leaving], 1, 30_000);
    const id = await observer.ask<string>("add", { n: 1, act: "wait", ms: jobMs });
    if (!(await first)) throw new Error("the job did not start");
    const staying = await stage.worker(contender, place, "default");
    await pause(1_000);

    let ended = false;
    leaving.on("ended", () => (ended = true));
    const rerun = startOf([staying], 1, watchedMs);
    const from = monoMs();
    leaving.signal("SIGTERM");
    await Promise.race([leaving.exited, pause(watchedMs)]);
    const exitedAfterMs = leaving.over ? monoMs() - from : null;
    // What it sent in its last moment may still be on its way.
    await pause(1_000);
    const atExit = await observer.ask<Found>("find", id);
    const again = ended ? null : await rerun;
    await Promise.all([leaving.kill(), staying.kill(), observer.kill()]);
    return {
      sigterm: {
        jobMs,
        exitedAfterMs,
        ended,
        rerunAfterMs: again ? again.at - from : null,
        atExit: atExit.detail,
        stateAtExit: atExit.state,
        watchedMs,
      },
    };
  },
};
