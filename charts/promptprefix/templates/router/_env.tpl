{{/* Settings of the picker and of Envoy's bootstrap, which must be the same: {root, tenant}. */}}

{{- define "promptprefix.routerEnv" -}}
{{- $values := .root.Values.router -}}
- name: PROMPTPREFIX_TENANT
  value: {{ .tenant | quote }}
- name: PROMPTPREFIX_TENANT_HEADER
  value: {{ $values.tenantHeader | quote }}
- name: PROMPTPREFIX_CONTROL_URL
  value: {{ include "promptprefix.controlUrl" .root }}
- name: PROMPTPREFIX_LOG_LEVEL
  value: {{ $values.logLevel | quote }}
- name: PROMPTPREFIX_WORKERS
  value: {{ int64 $values.workers | quote }}
- name: PROMPTPREFIX_MAX_REQUEST_BYTES
  value: {{ int64 $values.maxRequestBytes | quote }}
- name: PROMPTPREFIX_MAX_CONNECTIONS
  value: {{ int64 $values.maxConnections | quote }}
- name: PROMPTPREFIX_MEMO_ENTRIES
  value: {{ int64 $values.memoEntries | quote }}
- name: PROMPTPREFIX_MAX_TEXT_BYTES
  value: {{ int64 $values.maxTextBytes | quote }}
- name: PROMPTPREFIX_UNDECLARED_MODE
  value: {{ $values.undeclaredMode | quote }}
- name: PROMPTPREFIX_PRECISE_MAX_BLOCKS
  value: {{ int64 $values.preciseMaxBlocks | quote }}
- name: PROMPTPREFIX_PRECISE_TIMEOUT_MS
  value: {{ int64 $values.preciseTimeoutMs | quote }}
- name: PROMPTPREFIX_HISTORY_CHUNKS
  value: {{ int64 $values.historyChunks | quote }}
- name: PROMPTPREFIX_TOKENS_PER_ACTIVE_REQUEST
  value: {{ int64 $values.tokensPerActiveRequest | quote }}
- name: PROMPTPREFIX_LOAD_FACTOR
  value: {{ $values.loadFactor | quote }}
- name: PROMPTPREFIX_LOAD_SLACK
  value: {{ int64 $values.loadSlack | quote }}
- name: PROMPTPREFIX_SATURATED_AT
  value: {{ int64 $values.shedding.saturatedAt | quote }}
- name: PROMPTPREFIX_SHEDDABLE_OBJECTIVES
  value: {{ join "," $values.shedding.objectives | quote }}
- name: PROMPTPREFIX_OBJECTIVE_HEADER
  value: {{ $values.shedding.header | quote }}
- name: PROMPTPREFIX_ENGINE_INTERVAL_MS
  value: {{ int64 $values.engineIntervalMs | quote }}
{{- if include "promptprefix.gateway" .root }}
- name: PROMPTPREFIX_DOOR
  value: gateway
- name: PROMPTPREFIX_GATEWAY_TLS
  value: {{ $values.gateway.tls | quote }}
- name: PROMPTPREFIX_GATEWAY_DRAIN_S
  value: {{ int64 $values.drainSeconds | quote }}
{{- else }}
- name: PROMPTPREFIX_DECISION_TIMEOUT_MS
  value: {{ int64 $values.decisionTimeoutMs | quote }}
- name: PROMPTPREFIX_LOAD_INTERVAL_MS
  value: {{ int64 $values.loadIntervalMs | quote }}
- name: PROMPTPREFIX_HEALTH_INTERVAL_S
  value: {{ $values.healthIntervalSeconds | quote }}
- name: PROMPTPREFIX_IDLE_TIMEOUT_S
  value: {{ int64 $values.idleTimeoutSeconds | quote }}
{{- end }}
{{- end }}
