// The loader of prom-client for the command line, which has registries of its own.
export { promClient } from "./telemetry/prom-client.ts";
