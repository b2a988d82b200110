// Ready-made loggers for `open`'s option `logger`: one line per fact, as JSON or as text, without secrets.
export { jsonWriter, prettyWriter, type WriterOptions } from "./telemetry/writers.ts";
export type { Logger } from "./telemetry/log.ts";
