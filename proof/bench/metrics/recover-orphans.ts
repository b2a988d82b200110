// One worker died with a hundred thousand running jobs: how long `open` takes, which recovers them before it resolves.
import type { Metric } from "../harness.ts";
import type { Opened } from "../programs/open.ts";
import { fileOf } from "../stores/sqlite.ts";
import { filled } from "./drain-deep.ts";

export const recoverOrphans: Metric = {
  names: ["recoverOrphans"],
  async run(bench) {
    const jobs = bench.pick(100_000, 20_000);
    const url = await filled(bench, [{ kind: "noop", priority: 0, count: jobs }]);
    const path = fileOf(url);
    const orphan = await bench.start("orphan", { path });
    const claimed = await orphan.ask<number>("claim", { kind: "noop", count: jobs });
    await orphan.kill();
    bench.progress(`recoverOrphans: ${claimed} jobs`);
    const opener = await bench.start("open", { path });
    const { openMs, recoveryMs, recovered } = await bench.during([opener], () => opener.ask<Opened>("open"));
    await bench.store.drop(url);
    if (recovered !== jobs) throw new Error(`${recovered} of ${jobs} orphans were recovered`);
    return [
      {
        name: "recoverOrphans",
        unit: "ms",
        ours: openMs,
        targets: [{ text: "< 5,000 ms", value: openMs, atMost: 5_000 }],
        limits: [{ text: "NFR-001: < 30 s", value: openMs, atMost: 30_000 }],
        detail: { jobs, recoveryMs },
      },
    ];
  },
};
