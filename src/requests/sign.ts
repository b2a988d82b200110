// Signatures of Standard Webhooks 1.0.0: `webhook-id`, `webhook-timestamp` and `webhook-signature` over "id.timestamp.body". The id is the request's and
// stays the same when it is sent again; the timestamp is that of the sending.
import { createHmac, createPrivateKey, sign as signBytes } from "node:crypto";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Secret } from "./secrets.ts";

/** What a signature is made of. */
export interface Signable {
  /** The id of the request. */
  readonly id: string;
  /** When it is sent, in milliseconds since 1970. */
  readonly sentAt: number;
  /** Its method, in capitals. */
  readonly method: string;
  /** Its whole address. */
  readonly url: URL;
  /** The bytes of its body. */
  readonly body: Uint8Array;
  /** The value of a secret. */
  readonly secret: (secret: Secret) => Promise<string>;
}

/** Headers that are added to a request. */
export type Signer = (request: Signable) => Promise<Readonly<Record<string, string>>>;

/**
 * Signs as Standard Webhooks say. With several secrets there are several signatures, so that a receiver with either of them accepts it while secrets are
 * changed. A value `whsec_...` is an HMAC key of 24 to 64 bytes (v1), `whsk_...` an Ed25519 key (v1a).
 */
export function standardWebhooks(...secrets: readonly Secret[]): Signer {
  if (secrets.length === 0)
    throw new OutliveError(
      ErrorCode.optionInvalid,
      "standardWebhooks() was called without a secret.",
      'Pass one, or two while they are changed: standardWebhooks(secret("NEW"), secret("OLD")).',
    );
  return async ({ id, sentAt, body, secret }) => {
    const safeId = id.replaceAll(".", "_");
    const timestamp = String(Math.floor(sentAt / 1_000));
    const content = Buffer.concat([Buffer.from(`${safeId}.${timestamp}.`), body]);
    const signatures = await Promise.all(secrets.map(async (one) => signature(one.name, await secret(one), content)));
    return { "webhook-id": safeId, "webhook-timestamp": timestamp, "webhook-signature": signatures.join(" ") };
  };
}

function signature(name: string, value: string, content: Buffer): string {
  if (value.startsWith("whsk_")) return `v1a,${ed25519(name, value.slice("whsk_".length), content)}`;
  const key = Buffer.from(value.startsWith("whsec_") ? value.slice("whsec_".length) : value, "base64");
  if (key.length < 24 || key.length > 64) throw unusable(name, `it has ${key.length} bytes, and 24 to 64 are allowed`);
  return `v1,${createHmac("sha256", key).update(content).digest("base64")}`;
}

/** The head of PKCS #8 before the 32 bytes of an Ed25519 seed. */
const PKCS8_ED25519 = Buffer.from("302e020100300506032b657004220420", "hex");

function ed25519(name: string, text: string, content: Buffer): string {
  const bytes = Buffer.from(text, "base64");
  if (bytes.length !== 32 && bytes.length !== 64) throw unusable(name, "it is not an Ed25519 key");
  const key = createPrivateKey({
    key: Buffer.concat([PKCS8_ED25519, bytes.subarray(0, 32)]),
    format: "der",
    type: "pkcs8",
  });
  return signBytes(null, content, key).toString("base64");
}

function unusable(name: string, why: string): OutliveError {
  return new OutliveError(
    ErrorCode.secretMissing,
    `The secret ${JSON.stringify(name)} can't sign: ${why}.`,
    "Use whsec_ and 24 to 64 random bytes in base64.",
    { secret: name },
  );
}
