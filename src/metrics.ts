// `outlive/metrics`: Prometheus metrics of an engine in your own prom-client registry, and those of several processes as one.

export {
  aggregatedText,
  attachMetrics,
  lasting,
  type Measured,
  type MetricsOptions,
  type MetricsSnapshot,
} from "./telemetry/metrics.ts";
