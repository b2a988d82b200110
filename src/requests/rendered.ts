// From what `send` returned to what goes out: URL, headers and body, checked. The URL is parsed once, and only the parsed value is used. Nothing that is not
// plain ASCII gets into a header, and the headers of the connection itself belong to the connection.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { encodeJson } from "../job/json.ts";
import { cutText } from "../job/text.ts";
import { VERSION } from "../platform/identity.ts";
import type { RequestSettings, Sent } from "./contract.ts";
import { Secret, type Secrets } from "./secrets.ts";

/** A request as it goes out. */
export interface Rendered {
  /** Its address. */
  readonly url: URL;
  /** Its method, in capitals. */
  readonly method: string;
  /** Its headers; names are in lower case. */
  readonly headers: Readonly<Record<string, string>>;
  /** Its body; null: none. */
  readonly body: Buffer | null;
  /** Its idempotency key; null: none. */
  readonly idempotencyKey: string | null;
}

/** Which job and attempt the request belongs to. */
export interface Origin {
  readonly kind: string;
  readonly jobId: string;
  readonly attempt: number;
  /** The idempotency key; null: its kind has none. */
  readonly key: string | null;
  readonly sentAt: number;
}

/** The largest body of a request. */
export const MAX_BODY = 16 << 20;

const FORBIDDEN = new Set([
  "host",
  "connection",
  "keep-alive",
  "transfer-encoding",
  "content-length",
  "upgrade",
  "te",
  "trailer",
  "expect",
  "http2-settings",
]);
const TOKEN = /^[!#$%&'*+.^_`|~0-9a-z-]+$/;
const VALUE = /^[\t\x20-\x7e]*$/;

/** Ports of databases and mail, which a URL from the input has no business with. */
const RISKY_PORTS = new Set([
  1433, 1521, 2375, 2376, 2379, 3306, 5432, 5984, 6379, 6443, 9042, 9200, 10250, 11211, 27017,
]);

type Rendering = Pick<RequestSettings, "method" | "protocols" | "connection" | "idempotency">;

/** At once, unless it has secrets or a signature. */
export function render(
  sent: Sent,
  settings: Rendering,
  secrets: Secrets,
  origin: Origin,
): Rendered | Promise<Rendered> {
  return hasSecret(sent.headers) || hasSecret(sent.query) || sent.sign
    ? renderWithSecrets(sent, settings, secrets, origin)
    : renderPlain(sent, settings, origin, NO_SECRETS);
}

const NO_SECRETS: ReadonlyMap<unknown, string> = new Map();

function hasSecret(part: Sent["headers"] | Sent["query"]): boolean {
  return part !== undefined && Object.values(part).some(isSecret);
}

function isSecret(value: unknown): value is Secret {
  return value instanceof Secret;
}

async function renderWithSecrets(sent: Sent, settings: Rendering, secrets: Secrets, origin: Origin): Promise<Rendered> {
  const values = new Map<Secret, string>();
  for (const one of [...Object.values(sent.query ?? {}), ...Object.values(sent.headers ?? {})])
    if (isSecret(one)) values.set(one, await secrets.value(one));
  const rendered = renderPlain(sent, settings, origin, values);
  if (!sent.sign) return rendered;
  const { method, url, body } = rendered;
  const signable = { id: ascii(origin.jobId), sentAt: origin.sentAt, method, body: body ?? Buffer.alloc(0) };
  // The user's function gets a URL of its own: what it changes must not change what is sent.
  const signed = await sent.sign({ ...signable, url: new URL(url), secret: (one) => secrets.value(one) });
  const headers = { ...rendered.headers };
  for (const [name, value] of Object.entries(signed)) setHeader(headers, name, value, origin.kind);
  return { ...rendered, headers };
}

function renderPlain(sent: Sent, settings: Rendering, origin: Origin, secrets: ReadonlyMap<unknown, string>): Rendered {
  const { method, idempotency } = settings;
  const { kind } = origin;
  const url = urlOf(sent, settings, kind, secrets);
  const headers: Record<string, string> = {};
  if (sent.headers)
    for (const [name, value] of Object.entries(sent.headers))
      setHeader(headers, name, secrets.get(value) ?? value, kind);
  const { body, type } = bodyOf(sent, method, kind);
  if (type !== null) headers["content-type"] ??= type;
  headers["user-agent"] ??= USER_AGENT;
  headers["accept-encoding"] ??= "gzip, br, zstd";
  headers["x-request-id"] ??= `${ascii(origin.jobId)}-${origin.attempt}`;
  let idempotencyKey: string | null = null;
  if (idempotency && origin.key !== null) {
    const key = ascii(origin.key);
    idempotencyKey = headers[idempotency.header] ?? (idempotency.quoted ? `"${key}"` : key);
    headers[idempotency.header] = idempotencyKey;
  }
  return { url, method, headers, body, idempotencyKey };
}

const USER_AGENT = `outlive/${VERSION}`;

/** The latest URL of each kind. Many kinds have only one, and parsing it costs a plain request a twentieth of its time. Never changed. */
const latest = new WeakMap<Rendering, { readonly text: string; readonly url: URL }>();

function urlOf(sent: Sent, settings: Rendering, kind: string, secrets: ReadonlyMap<unknown, string>): URL {
  const { url: given, query } = sent;
  if (typeof given === "string" && query === undefined) {
    const known = latest.get(settings);
    if (known?.text === given) return known.url;
    const url = checkedUrl(given, settings, kind);
    latest.set(settings, { text: given, url });
    return url;
  }
  const url = checkedUrl(given, settings, kind);
  if (query)
    for (const [name, value] of Object.entries(query))
      url.searchParams.append(name, secrets.get(value) ?? String(value));
  return url;
}

export function checkedUrl(
  given: string | URL,
  { protocols, connection }: Pick<RequestSettings, "protocols" | "connection">,
  kind: string,
): URL {
  const url = URL.parse(String(given));
  if (url === null) throw refused(kind, "its URL can't be parsed", "Return an absolute URL from `send`.");
  const { protocol } = url;
  if (protocol !== "http:" && protocol !== "https:")
    throw refused(kind, `its URL has the scheme ${protocol}`, "Use https or http.");
  if (!protocols.includes(protocol))
    throw refused(kind, `its URL has the scheme ${protocol}`, `Allow it: protocols: ["http:", "https:"].`);
  if (url.username !== "" || url.password !== "")
    throw refused(kind, "its URL holds a user or a password", "Use an authorization header with a secret.");
  if (url.hostname === "") throw refused(kind, "its URL has no host", "Return an absolute URL from `send`.");
  const port = Number(url.port);
  if (
    connection.addresses === "public" &&
    port !== 0 &&
    port !== 80 &&
    port !== 443 &&
    (port < 1_024 || RISKY_PORTS.has(port))
  )
    throw refused(kind, `its URL has the port ${port}`, 'Such a port needs addresses: "any", or a list of hosts.');
  if (url.hash !== "") url.hash = "";
  return url;
}

function setHeader(headers: Record<string, string>, given: string, value: unknown, kind: string): void {
  const name = given.toLowerCase();
  if (!TOKEN.test(name))
    throw refused(kind, `the header ${JSON.stringify(given)} has no valid name`, "Use letters, digits and -.");
  if (FORBIDDEN.has(name) || name.startsWith("proxy-"))
    throw refused(kind, `the header ${name} belongs to the connection`, "Remove it; it is set as needed.");
  if (typeof value !== "string") throw refused(kind, `the header ${name} is not a text`, "Use a text or secret(NAME).");
  // The value itself is not shown: it may be a secret.
  if (!VALUE.test(value))
    throw refused(kind, `the header ${name} holds a line break or a character that is not ASCII`, "Encode it first.");
  headers[name] = value;
}

function bodyOf(
  { json, form, body }: Sent,
  method: string,
  kind: string,
): { readonly body: Buffer | null; readonly type: string | null } {
  if (json === undefined && form === undefined && body === undefined) return NO_BODY;
  const given = [json, form, body].filter((one) => one !== undefined).length;
  if (given > 1) throw refused(kind, "it has several bodies", "Return one of `json`, `form` and `body`.");
  if (method === "GET" || method === "HEAD")
    throw refused(kind, `a ${method} has no body`, "Use `query`, or another method.");
  const bytes = (text: string): Buffer => Buffer.from(text, "utf8");
  const made =
    json !== undefined
      ? { body: bytes(encodeJson(json, `The body of a ${kind} request`)), type: "application/json" }
      : form !== undefined
        ? { body: bytes(new URLSearchParams(form).toString()), type: "application/x-www-form-urlencoded" }
        : typeof body === "string"
          ? { body: bytes(body), type: "text/plain; charset=utf-8" }
          : { body: Buffer.from(body!), type: "application/octet-stream" };
  if (made.body.length > MAX_BODY)
    throw refused(
      kind,
      `its body has ${made.body.length} bytes, at most ${MAX_BODY} are allowed`,
      "Upload it elsewhere and send its address.",
    );
  return made;
}

const NO_BODY = { body: null, type: null } as const;

/** An id as it goes into a header. */
export function ascii(text: string): string {
  return VALUE.test(text) ? text : encodeURIComponent(text);
}

export function refused(kind: string, why: string, hint: string): OutliveError {
  return new OutliveError(ErrorCode.requestRefused, `A ${kind} request can't be sent: ${why}.`, hint, { kind });
}

const MAX_SHOWN_URL = 300;

/** A request for people, in errors and events: without the values of its query and without headers. */
export function shownRequest({ method, url }: Pick<Rendered, "method" | "url">): string {
  const names = url.search === "" ? [] : [...new Set(url.searchParams.keys())];
  const query = names.length === 0 ? "" : `?${names.map((name) => `${name}=...`).join("&")}`;
  return `${method} ${cutText(`${url.origin}${url.pathname}${query}`, MAX_SHOWN_URL)}`;
}
