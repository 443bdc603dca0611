-- Chat completions for wrk. Arguments: the file of prompts (a line each: name, tab, body), "yes" if
-- the name is sent as x-promptprefix, and where the requests' numbers begin.
local mark = string.rep("#", 12)
local heads, tails, number, first

function init(args)
  heads, tails, first = {}, {}, tonumber(args[3])
  number = first
  for line in io.lines(args[1]) do
    local name, body = line:match("^([^\t]*)\t(.*)$")
    local at = body:find(mark, 1, true)
    local named = args[2] == "yes" and "x-promptprefix: " .. name .. "\r\n" or ""
    heads[#heads + 1] = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n"
      .. "content-type: application/json\r\n" .. named
      .. "content-length: " .. #body .. "\r\n\r\n" .. body:sub(1, at - 1)
    tails[#tails + 1] = body:sub(at + #mark)
  end
end

function request()
  number = number + 1
  local which = number % #heads + 1
  return heads[which] .. string.format("%012d", number) .. tails[which]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "microseconds": %d, "p50_us": %d, "p99_us": %d, "errors": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
