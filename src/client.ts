// The public surface of `outlive/client`: what a web process needs, and nothing that works or recovers.
export {
  type Client,
  type ClientOptions,
  connect,
  type EnqueueManyOptions,
  type ListOptions,
  type Report,
} from "./clients.ts";
export { job } from "./contract.ts";
export type { OutliveConfig } from "./engine/config.ts";
export type { EnqueueOptions } from "./core/enqueue.ts";
export { ErrorCode, OutliveError } from "./core/errors.ts";
