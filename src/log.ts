// Ready-made loggers for `open`'s option `logger`: one line per fact, as JSON or as text, without secrets.

export { jsonWriter, type Logger, prettyWriter, type WriterOptions } from "./telemetry/log.ts";
