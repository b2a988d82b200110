// `outlive/otel`: spans and metrics of OpenTelemetry, with the trace context carried in the job.

export { openTelemetry, type OpenTelemetryOptions } from "./telemetry/otel.ts";
