// Redirects. They are refused unless the kind allows them; then each hop is checked as the first one was, https never becomes http, and across origins
// nothing goes along but what describes the answer that is wanted: no secret, no signature, no key, no body.
import { refused, type Rendered } from "./rendered.ts";
import { checkedUrl } from "./rendered.ts";
import type { RequestSettings } from "./contract.ts";
import type { Answer, NoAnswer } from "./wire.ts";

/** A request, or a redirect of it. */
export interface Hop {
  /** What is sent. */
  readonly request: Rendered;
  /** How many came before it. */
  readonly redirects: number;
}

const STATUSES = [301, 302, 303, 307, 308];
const KEPT_ACROSS_ORIGINS = [
  "accept",
  "accept-encoding",
  "accept-language",
  "content-type",
  "user-agent",
  "x-request-id",
];

/** The next hop; the end, if it must not be followed; null: the answer is not a redirect, or the kind takes it as it is. */
export function nextHop(
  { request, redirects }: Hop,
  answer: Answer,
  settings: Pick<RequestSettings, "redirects" | "ok" | "protocols" | "connection">,
  kind: string,
): Hop | NoAnswer | null {
  const { max, sameOrigin } = settings.redirects;
  const { status } = answer;
  if (max === 0 || !STATUSES.includes(status) || settings.ok(status)) return null;
  const location = answer.headers["location"];
  if (location === undefined) return null;
  const stop = (message: string): NoAnswer => ({ is: "none", sent: true, fault: "refused", message, status });
  if (redirects >= max) return stop(`it was redirected more than ${max} times`);
  let url: URL;
  try {
    url = checkedUrl(new URL(location, request.url), settings, kind);
  } catch (thrown) {
    return stop(thrown instanceof Error ? thrown.message : refused(kind, "it was redirected", "").message);
  }
  if (request.url.protocol === "https:" && url.protocol === "http:")
    return stop("it was redirected from https to http");
  const isSame = url.origin === request.url.origin;
  if (!isSame && sameOrigin) return stop(`it was redirected to another origin, ${url.origin}`);
  const keepsMethod = status === 307 || status === 308 || request.method === "GET" || request.method === "HEAD";
  if (keepsMethod && request.body !== null && !isSame)
    return stop(`it was redirected with its body to another origin, ${url.origin}`);
  const kept = Object.entries(request.headers).filter(([name]) => isSame || KEPT_ACROSS_ORIGINS.includes(name));
  const withoutBody = keepsMethod ? kept : kept.filter(([name]) => name !== "content-type");
  return {
    request: {
      ...request,
      url,
      method: keepsMethod ? request.method : "GET",
      headers: Object.fromEntries(withoutBody),
      body: keepsMethod ? request.body : null,
    },
    redirects: redirects + 1,
  };
}
