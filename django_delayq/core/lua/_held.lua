-- Prelude: jobs that are held until a worker comes that knows their task, or has their key.
--
-- Needs _frame, _job. Beside the set of held tokens, a second set is ordered by task, then as ranks are, so that a worker
-- finds what it knows without reading the rest. The error of a held job says since when it is held, and for what.

-- ms: a hundred years.
local FOR_EVER = 3153600000000

local function held_member(reason, start, tail, token)
  return reason .. '\0' .. string.format('%016.0f', rank_of(priority_of(tail), start)) .. '\0' .. token
end

-- What a job is held for: its kind, a name, and of a limit also its key, each with its length before it. So whatever is in
-- a name, no reason is taken for another, or begins as another does. reasons.py has the kinds.
local function reason_of(...)
  local text = ''
  for _, part in ipairs({ ... }) do text = text .. #part .. ':' .. part end
  return text
end

-- The parts that a text begins with, and where they end.
local function parts_of(text)
  local parts, at = {}, 1
  while true do
    local size, from = text:match('^(%d+):()', at)
    if not size or from + size - 1 > #text then return parts, at end
    parts[#parts + 1] = text:sub(from, from + size - 1)
    at = from + size
  end
end

-- The reason of a member, its token, and the kind of the reason; nil: no script of ours has written it.
local function split_member(member)
  local parts, at = parts_of(member)
  local token = #parts >= 2 and member:match('^%z%Z*%z(%Z*)$', at)
  if token then return member:sub(1, at - 1), token, parts[1] end
end

-- The name in a reason of a kind, and the key behind it; nil: it is of another kind.
local function named(kind, reason)
  local parts = parts_of(reason)
  if parts[1] == kind then return parts[2] or '', parts[3] or '' end
end

-- The key that a payload of ours is signed with; nil where a codec hides it.
local function key_of(payload)
  return payload and payload:sub(1, 160):match('","mac":".(....)')
end

local function held_error(reason, why, now_ms, since_ms)
  return cjson.encode({ kind = 'task', error = why, reason = reason, at = since_ms or now_ms, held = since_ms })
end

-- Since when a job is held; also after a worker that does not know its task has taken it; nil: it never was. The text
-- cannot stand inside another text of the JSON, where its quotes would be escaped.
local function held_since(text)
  return tonumber(text and text:match('"held":(%d+)'))
end

-- The reason that a job is held for, and the error that people read. Both are strings, even if the field is damaged.
local function read_held(text)
  local is_json, body = pcall(cjson.decode, text or '')
  if not is_json or type(body) ~= 'table' then body = {} end
  return tostring(body.reason or ''), tostring(body.error or 'its task is unknown')
end
