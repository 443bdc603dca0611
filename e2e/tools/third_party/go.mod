module promptprefix.dev/e2e/tools/third_party

go 1.25.0

// Nothing is built from these: their CRDs check what our charts render.
require (
	github.com/cert-manager/cert-manager v1.19.1
	github.com/prometheus-operator/prometheus-operator v0.85.0
	sigs.k8s.io/gateway-api-inference-extension v1.6.0
)
