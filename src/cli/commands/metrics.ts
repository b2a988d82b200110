// `outlive metrics`: the metrics of the store once, as Prometheus text. What happened inside the worker processes is served by
// `outlive work --http`.
import type { Register } from "../main.ts";

export const register: Register = (program, run) => {
  program
    .command("metrics")
    .description("the store's metrics once, as Prometheus text")
    .action(
      run(async ({ terminal, attach }) => {
        // Loaded here: no other command needs it.
        const [{ promClient }, { attachMetrics }] = await Promise.all([
          import("../../prom-client.ts"),
          import("../../metrics.ts"),
        ]);
        const registry = new (promClient().Registry)();
        attachMetrics(await attach(), { registry, only: "store", incidentsSince: 0 });
        const text = await registry.metrics();
        terminal.answer(terminal.json ? await registry.getMetricsAsJSON() : null, () => text);
      }),
    );
};
