// `outlive/metrics`: Prometheus metrics of an engine in your own prom-client registry, and those of several processes as one.
export { aggregatedText, attachMetrics, lasting } from "./telemetry/metrics.ts";
export type { Measured, MetricsOptions, MetricsSnapshot } from "./telemetry/metrics.ts";
