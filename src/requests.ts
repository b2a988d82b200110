// `outlive/requests`: HTTP calls that are stored before they are sent and outlive the process that sends them.

export { request, type RequestOptions, type RequestRetryOptions, type Size } from "./engine/request.ts";
export type { IfUnknown } from "./job/requests.ts";
export type { AddressRule } from "./requests/addresses.ts";
export type {
  Method,
  RequestContract,
  RequestFailure,
  RequestFault,
  RequestResult,
  ResponseOf,
  Sent,
  UnknownDecision,
  UnknownOutcome,
} from "./requests/contract.ts";
export { secret, type Secret, type SecretSource } from "./requests/secrets.ts";
export { type Signable, type Signer, standardWebhooks } from "./requests/sign.ts";
