// How long the counts of all kinds take on PostgreSQL next to a large table and many changes of counts that no purge has added up yet.
import { open } from "../../../src/index.ts";
import { median } from "../figure.ts";
import type { Metric } from "../harness.ts";
import { noop } from "../programs/noop.ts";

const UNFOLDED = 50_000;
const KINDS = 20;

export const counts: Metric = {
  names: ["countsMs"],
  async run(bench) {
    const jobs = bench.pick(1_000_000, 50_000);
    const { store } = bench;
    const url = await store.place();
    bench.progress(`countsMs, ${jobs} jobs`);
    await store.fill(bench, url, { kind: "noop", priority: 0, finished: true }, jobs);
    const { Client } = await import("pg");
    const client = new Client({ connectionString: url });
    await client.connect();
    await client.query(
      `INSERT INTO outlive.kinds (name) SELECT 'kind-' || n FROM generate_series(1, ${KINDS}) AS n ON CONFLICT DO NOTHING`,
    );
    // They add up to nothing, and the sweep that would fold them belongs to a worker.
    await client.query(
      `INSERT INTO outlive.kind_deltas (kind, jobs) SELECT k.id, CASE n % 2 WHEN 0 THEN 1 ELSE -1 END
       FROM outlive.kinds k, generate_series(1, ${UNFOLDED / KINDS}) AS n WHERE k.name LIKE 'kind-%'`,
    );
    await client.end();
    const engine = await open(url, { jobs: [noop], logger: false });
    const took: number[] = [];
    for (let round = 0; round < 20; round++) {
      const from = performance.now();
      await engine.counts();
      took.push(performance.now() - from);
    }
    await engine.close();
    await store.drop(url);
    const ours = median(took);
    return [
      {
        name: "countsMs",
        unit: "ms",
        ours,
        targets: [{ text: "≤ 20 ms", value: ours, atMost: 20 }],
        detail: { jobs, unfolded: UNFOLDED, kinds: KINDS },
      },
    ];
  },
};
