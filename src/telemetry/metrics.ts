// Prometheus metrics of an engine, in any prom-client registry: what this process did (process-metrics.ts, from events) and how the
// store is (store-metrics.ts, read at each scrape). Names and meanings are listed in docs/operations.md; a test holds the list.
import type { MetricObjectWithValues, MetricValue, Registry } from "prom-client";
import type { EngineEvent } from "../job/events.ts";
import { type MeasuredProcess, processMetrics } from "./process-metrics.ts";
import { promClient } from "./prom-client.ts";
import { type MeasuredStore, storeMetrics } from "./store-metrics.ts";

/** What is measured: an engine. */
export type Measured = MeasuredProcess & MeasuredStore;

export interface MetricsOptions {
  /** Where the metrics go. Default: prom-client's global registry. One engine per registry. */
  readonly registry?: Registry;
  /** "process": what happened in this process. "store": what is in the store. Default: both. If several processes are scraped, one of them is enough for the store. */
  readonly only?: "process" | "store";
  /** Deaths before this instant (ms) are left out of the times to detect and to resume. Default: now. */
  readonly incidentsSince?: number;
  /** What `onEvent` of `open` heard before: the recovery that `open` runs itself. Default: none. */
  readonly early?: readonly EngineEvent[];
}

/** Registers the metrics of an engine. Returns how to remove them again. Throws if `prom-client` is not installed. */
export function attachMetrics(engine: Measured, options: MetricsOptions = {}): () => void {
  const { registry = promClient().register, only, incidentsSince = Date.now(), early } = options;
  const detach = [
    only === "store" ? () => {} : processMetrics(engine, registry, early),
    only === "process" ? () => {} : storeMetrics(engine, registry, incidentsSince),
  ];
  return () => {
    for (const part of detach) part();
  };
}

/** One process's metrics as they cross a process boundary: what `registry.getMetricsAsJSON()` answers. */
export type MetricsSnapshot = readonly MetricObjectWithValues<MetricValue<string>>[];

/** The metrics of several processes as one text. Sums counters and histograms; gauges by their own aggregator. */
export function aggregatedText(snapshots: readonly MetricsSnapshot[]): Promise<string> {
  return promClient()
    .AggregatorRegistry.aggregate(snapshots.map((snapshot) => [...snapshot]))
    .metrics();
}

/** What a process that is gone leaves behind in the sums: a counter that fell would look like a restart of everything. */
export async function lasting(snapshots: readonly MetricsSnapshot[]): Promise<MetricsSnapshot> {
  const counted = snapshots.map((snapshot) =>
    snapshot.filter(({ type }) => String(type) === "counter" || String(type) === "histogram"),
  );
  return promClient().AggregatorRegistry.aggregate(counted).getMetricsAsJSON();
}
