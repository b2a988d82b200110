// `open` on a file with five million jobs that a killed process left: a WAL that no checkpoint reached, running jobs, a free lock. An open waits for the
// check of the whole file for at most 1 s, and that is part of what is measured.
import { statSync } from "node:fs";
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";
import type { Opened } from "../programs/open.ts";
import { fileOf } from "../stores/sqlite.ts";
import { filled } from "./drain-deep.ts";

const RUNNING = 50;

export const openUnclean: Metric = {
  names: ["openUnclean"],
  async run(bench) {
    const jobs = bench.pick(5_000_000, 100_000);
    const soiled = bench.pick(50_000, 20_000);
    const rounds = 3;
    const url = await filled(bench, [{ kind: "noop", priority: 0, count: jobs - rounds * soiled }]);
    const path = fileOf(url);
    const took: number[] = [];
    const checked: number[] = [];
    const walMb: number[] = [];
    for (let round = 1; round <= rounds; round++) {
      bench.progress(`openUnclean: round ${round} of ${rounds}, ${jobs} jobs`);
      const unclean = await bench.start("unclean", { path });
      // Each round's jobs come before those of the last, so that none is killed twice.
      await unclean.ask("soil", { count: soiled, running: RUNNING, priority: round });
      await unclean.kill();
      walMb.push(statSync(`${path}-wal`).size / 2 ** 20);
      const opener = await bench.start("open", { path });
      const { openMs, checkMs, recovered } = await bench.during([opener], () => opener.ask<Opened>("open"));
      if (recovered !== RUNNING) throw new Error(`${recovered} of ${RUNNING} running jobs were recovered`);
      took.push(openMs);
      checked.push(checkMs);
    }
    await bench.store.drop(url);
    const ours = median(took);
    return [
      {
        name: "openUnclean",
        unit: "ms",
        ours,
        targets: [{ text: "≤ 2,000 ms", value: ours, atMost: 2_000 }],
        detail: {
          jobs,
          rounds,
          running: RUNNING,
          checkMs: median(checked),
          walMb: median(walMb),
          max: Math.max(...took),
        },
      },
    ];
  },
};
